"""From a finished trajectory to a number."""
