"""Trajectory records out, and back in."""
