"""Trajectory records on disk."""
