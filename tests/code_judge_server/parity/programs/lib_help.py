help(len)
def mine(a: int = 1) -> str:
    """Documented."""
help(mine)
