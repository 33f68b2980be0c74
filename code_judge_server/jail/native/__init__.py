"""C parts that the machine compiles, and their callers. An optional fast path."""
