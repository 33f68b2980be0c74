"""Tier D: `executor` is the server's side, the rest a slot, the process that runs programs one after the other and cleans up
after each. Standard library only in a slot.

The server starts a slot with `python -I -S`, an empty environment and one end of a socket pair, and sends it one job at a
time; `main` is the loop, `program` runs one command that `spawn` starts, `frames` is what both ends say.
"""
