from __future__ import annotations


def f(x: Undefined) -> AlsoUndefined:
    return x


print(f(1), f.__annotations__)
