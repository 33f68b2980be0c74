"""From a submission to a verdict: `judge` compiles, runs each test case through `sandbox.Executor`, and compares.

Verdicts follow from what the kernel says of a run (`run_results`) and from what it printed (`checkers`, `program_checker`).
"""
