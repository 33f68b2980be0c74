"""Rewards of finished trajectories."""
