"""A judge for untrusted programs, served over HTTP: `python -m code_judge_server`.

A product of its own that imports nothing of `agentrl`. Read `schemas` for what it speaks, `judging` for how a verdict is
reached, and `sandbox` for what runs a program and what that isolates.
"""

__version__ = "0.1.0"
