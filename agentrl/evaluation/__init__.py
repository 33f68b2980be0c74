"""Evaluations of a policy on held-out prompts: rolled out, measured, reported and compared."""
