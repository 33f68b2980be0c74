"""Checks before any process starts: models, memory, functions of the user."""
