"""Prompts in."""
