def check(x):
    assert x > 0, f"{x} is not positive"


check(-1)
