"""Saved searches over recorded trajectories, whose hits are curves over the steps of a run."""
