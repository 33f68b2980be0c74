"""Checks of a config that need no file and no process."""
