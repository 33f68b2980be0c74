"""The policy update; runs without Ray."""
