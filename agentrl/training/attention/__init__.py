"""Attention over packed rows: its layouts and kernels."""
