"""Pages that show a run in a browser: its curves, steps, trajectories and tokens."""
