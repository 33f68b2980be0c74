"""From a prompt to a trajectory: the multi-turn loop, its tokens, and the workers that run many at once."""
