"""The judging of a submission: `judge` compiles it, runs each test case through `sandbox.Executor`, and compares the output.

Verdicts follow from the kernel's report of a run (`run_results`) and from its output (`checkers`, `deciding_program`).
"""
