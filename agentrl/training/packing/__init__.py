"""Trajectories as packed rows of tokens."""
