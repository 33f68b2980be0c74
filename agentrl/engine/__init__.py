"""Engines, which sample completions."""
