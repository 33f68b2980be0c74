"""Logs, metrics, progress, pictures."""
