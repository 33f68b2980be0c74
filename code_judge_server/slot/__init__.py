"""The process that runs programs one after the other, and cleans up after each. Standard library only.

The server starts it with `python -I -S`, an empty environment and one end of a socket pair, and sends it one job at a
time; `main` is the loop, `program` runs one command that `spawn` starts, `process_tree` finds and ends everything that it
started, `frames` is what both ends say.
"""
