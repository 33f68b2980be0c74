"""Transports that bring new weights to the engines."""
