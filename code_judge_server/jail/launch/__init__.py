"""From the launcher to a warm slot."""
