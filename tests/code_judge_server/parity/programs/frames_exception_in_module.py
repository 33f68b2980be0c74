def f(x):
    return g(x) / 0


def g(x):
    return x


f(3)
