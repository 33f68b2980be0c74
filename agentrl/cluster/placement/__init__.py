"""Pools, nodes and the cores and GPUs of each process."""
