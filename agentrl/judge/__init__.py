"""The client of the code judge, and a judge for one run."""
