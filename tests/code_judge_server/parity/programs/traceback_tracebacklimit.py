import sys

sys.tracebacklimit = 1


def f(n):
    return 1 / 0 if n == 0 else f(n - 1)


f(5)
