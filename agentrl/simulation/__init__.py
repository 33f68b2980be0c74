"""Runs in virtual time, with a tool and a reward that are simulated."""
