"""Processes of a run as Ray workers."""
