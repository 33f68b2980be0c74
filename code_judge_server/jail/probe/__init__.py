"""Canaries that show which tier this machine gives."""
