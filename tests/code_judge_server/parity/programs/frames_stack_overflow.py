import sys

sys.setrecursionlimit(10**8)


class Deep:
    def __add__(self, other):
        return [self][0].__dict__.get("x") or sum([self], self)


Deep() + 1
