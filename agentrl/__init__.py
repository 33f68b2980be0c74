"""Reinforcement learning for tool-using language models. Read `agentrl/runners/rstar2.py` first."""
