"""Tier D: `executor` is the server's side, the rest is a slot: the process that runs programs one after the other and cleans up
after each. A slot uses the standard library only.

The server starts a slot with `python -I -S`, an empty environment and one end of a socket pair, and sends it one job at a
time; `main` is the loop, `program` runs one command that `spawn` starts, `frames` has the messages between both ends.
"""
