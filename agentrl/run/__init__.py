"""One run of training: its plan, its steps and stages, its folder, and what survives a death."""
