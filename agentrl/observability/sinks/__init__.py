"""Trackers that a run reports its metrics to."""
