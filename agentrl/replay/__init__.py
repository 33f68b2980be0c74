"""Replay of a run's stages from its record: which stage still gives what was recorded?"""
