"""Bounds on what one client can make the server hold or do."""
