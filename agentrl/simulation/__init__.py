"""Runs in virtual time: an engine, a tool and a reward that only take the time of real ones."""
