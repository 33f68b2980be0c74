"""Environments: games, simulated users and dialogues, which answer a turn of the policy that calls no tool."""
