"""The multi-turn loop that makes trajectories, its tokens, and the workers that run many loops at once."""
