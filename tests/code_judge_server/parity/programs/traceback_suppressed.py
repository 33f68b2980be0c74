try:
    int("x")
except ValueError:
    raise RuntimeError("clean") from None
