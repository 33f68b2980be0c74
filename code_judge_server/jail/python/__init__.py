"""Python programs inside a slot: running, ending, sessions and notebooks."""
