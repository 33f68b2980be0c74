"""Small honest programs of many kinds, each with its right output.

Every kind is a function from a random generator to a `Case`; the expected output is computed here in another way than by the
program, and never by running it.
"""

import bisect
import functools
import json
import math
import random
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from textwrap import dedent

_MAX_PRIME = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A program, its input, and its right output."""

    code: str
    stdin: str = ""
    expected_output: str


def _case(code: str, expected: object, stdin: str = "") -> Case:
    return Case(code=dedent(code).lstrip(), stdin=stdin, expected_output=str(expected))


def _words(rng: random.Random, count: int) -> list[str]:
    return ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 8))) for _ in range(count)]


def sum_of_lines(rng: random.Random) -> Case:
    """Read numbers, one a line."""
    numbers = [rng.randint(-(10**6), 10**6) for _ in range(rng.randint(5, 200))]
    return _case("import sys\nprint(sum(map(int, sys.stdin)))\n", sum(numbers), "\n".join(map(str, numbers)))


def count_words(rng: random.Random) -> Case:
    """Count words with `collections` and print JSON."""
    words = rng.choices(_words(rng, 8), k=60)
    code = """
        import collections, json
        print(json.dumps(dict(sorted(collections.Counter(input().split()).items()))))
        """
    return _case(code, json.dumps(dict(sorted(Counter(words).items()))), " ".join(words))


def sieve(rng: random.Random) -> Case:
    """Compute for a few milliseconds: count primes."""
    limit = rng.randint(2_000, _MAX_PRIME)
    code = f"""
        n = {limit}
        flags = bytearray([1]) * (n + 1)
        flags[:2] = b"\\0\\0"
        for i in range(2, int(n**0.5) + 1):
            if flags[i]:
                flags[i * i :: i] = bytes(len(range(i * i, n + 1, i)))
        print(sum(flags))
        """
    return _case(code, bisect.bisect_right(_primes(), limit))


@functools.cache
def _primes() -> list[int]:
    return [n for n in range(2, _MAX_PRIME) if all(n % d for d in range(2, math.isqrt(n) + 1))]


def fractions_sum(rng: random.Random) -> Case:
    """Add fractions exactly: a telescoping sum."""
    terms = rng.randint(5, 80)
    code = f"""
        from fractions import Fraction
        print(sum(Fraction(1, k * (k + 1)) for k in range(1, {terms + 1})))
        """
    return _case(code, Fraction(terms, terms + 1))


def memoised_recursion(rng: random.Random) -> Case:
    """Recurse through `functools.cache`: Fibonacci numbers."""
    n = rng.randint(10, 300)
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    code = f"""
        import functools

        @functools.cache
        def fibonacci(n):
            return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

        print(fibonacci({n}))
        """
    return _case(code, a)


def shortest_path(rng: random.Random) -> Case:
    """Search a grid with `heapq`: without walls the shortest way is known."""
    width, height = rng.randint(3, 25), rng.randint(3, 25)
    code = f"""
        import heapq

        def search(width, height):
            heap, seen = [(0, 0, 0)], set()
            while heap:
                cost, x, y = heapq.heappop(heap)
                if (x, y) == (width - 1, height - 1):
                    return cost
                if (x, y) in seen:
                    continue
                seen.add((x, y))
                for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                    if 0 <= x + dx < width and 0 <= y + dy < height:
                        heapq.heappush(heap, (cost + 1, x + dx, y + dy))

        print(search({width}, {height}))
        """
    return _case(code, width + height - 2)


def dataclass_sort(rng: random.Random) -> Case:
    """Define a dataclass and sort its instances."""
    names = sorted({*_words(rng, 12)})
    shuffled = rng.sample(names, len(names))
    code = """
        from dataclasses import dataclass

        @dataclass(order=True)
        class Item:
            name: str
            length: int = 0

        print(*(item.name for item in sorted(Item(word, len(word)) for word in input().split())))
        """
    return _case(code, " ".join(names), " ".join(shuffled))


def regular_expression(rng: random.Random) -> Case:
    """Find numbers in text."""
    numbers = [rng.randint(0, 9999) for _ in range(20)]
    text = " ".join(f"{word}={number};" for word, number in zip(_words(rng, 20), numbers, strict=True))
    code = 'import re\nprint([int(x) for x in re.findall(r"=(\\d+);", input())])\n'
    return _case(code, numbers, text)


def unicode_text(rng: random.Random) -> Case:
    """Reverse text that is not ASCII."""
    text = "".join(rng.choices("äöüßéλπжш漢字仮名🙂", k=rng.randint(5, 60)))
    return _case("print(input()[::-1])\n", text[::-1], text)


def big_integers(rng: random.Random) -> Case:
    """Exponentiate modulo a prime."""
    base, exponent, modulus = rng.randint(2, 10**9), rng.randint(10**8, 10**9), 2**61 - 1
    return _case(f"print(pow({base}, {exponent}, {modulus}))\n", pow(base, exponent, modulus))


def simulation(rng: random.Random) -> Case:
    """Draw random numbers from a seed; their mean is known to a wide tolerance."""
    seed = rng.randint(0, 10**6)
    code = f"""
        import random, statistics
        rng = random.Random({seed})
        mean = statistics.fmean(rng.random() for _ in range(3000))
        print(0.4 < mean < 0.6)
        """
    return _case(code, True)


def threads(rng: random.Random) -> Case:
    """Add in a pool of threads."""
    n = rng.randint(4, 60)
    code = f"""
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as pool:
            print(sum(pool.map(lambda k: k * k, range({n + 1}))))
        """
    return _case(code, n * (n + 1) * (2 * n + 1) // 6)


def numpy_reduction(rng: random.Random) -> Case:
    """Sum squares with numpy."""
    n = rng.randint(10, 20_000)
    return _case(f"import numpy as np\nprint(int((np.arange({n + 1}) ** 2).sum()))\n", n * (n + 1) * (2 * n + 1) // 6)


def numpy_linear_system(rng: random.Random) -> Case:
    """Solve a linear system of integers whose solution is known."""
    n = rng.randint(2, 8)
    x = [rng.randint(-9, 9) for _ in range(n)]
    # Diagonally dominant, so that it has a solution for any random values.
    a = [[rng.randint(-3, 3) + (100 if i == j else 0) for j in range(n)] for i in range(n)]
    b = [sum(row[j] * x[j] for j in range(n)) for row in a]
    code = f"""
        import numpy as np
        solution = np.linalg.solve(np.array({a}), np.array({b}))
        print([int(round(value)) for value in solution])
        """
    return _case(code, x)


def numpy_fourier(rng: random.Random) -> Case:
    """Find the frequency of a sine with an FFT."""
    frequency = rng.randint(3, 200)
    code = f"""
        import numpy as np
        t = np.arange(1024) / 1024
        print(int(np.argmax(np.abs(np.fft.rfft(np.sin(2 * np.pi * {frequency} * t))))))
        """
    return _case(code, frequency)


def sympy_roots(rng: random.Random) -> Case:
    """Solve a quadratic equation whose roots are integers."""
    first, second = sorted(rng.sample(range(-20, 20), 2))
    code = f"""
        from sympy import symbols, solve
        x = symbols("x")
        print(sorted(solve(x**2 - ({first + second})*x + ({first * second}), x)))
        """
    return _case(code, [first, second])


def sympy_derivative(rng: random.Random) -> Case:
    """Differentiate and evaluate a polynomial."""
    coefficients = [rng.randint(-9, 9) for _ in range(5)]
    at = rng.randint(-5, 5)
    expected = sum(k * c * at ** (k - 1) for k, c in enumerate(coefficients) if k)
    polynomial = " + ".join(f"({c})*x**{k}" for k, c in enumerate(coefficients))
    return _case(f"import sympy as sp\nx = sp.Symbol('x')\nprint(sp.diff({polynomial}, x).subs(x, {at}))\n", expected)


def sympy_integral(rng: random.Random) -> Case:
    """Integrate a power exactly."""
    power, upper = rng.randint(1, 6), rng.randint(1, 9)
    code = f"from sympy import *\nx = symbols('x')\nprint(integrate(x**{power}, (x, 0, {upper})))\n"
    return _case(code, Fraction(upper ** (power + 1), power + 1))


def sympy_determinant(rng: random.Random) -> Case:
    """Take the determinant of a triangular matrix."""
    diagonal = [rng.randint(1, 9) for _ in range(4)]
    rows = [[diagonal[i] if i == j else (rng.randint(-9, 9) if j > i else 0) for j in range(4)] for i in range(4)]
    return _case(f"import sympy\nprint(sympy.Matrix({rows}).det())\n", math.prod(diagonal))


def numpy_and_sympy(rng: random.Random) -> Case:
    """Compile an expression of sympy for numpy."""
    a, b, n = rng.randint(1, 9), rng.randint(-9, 9), rng.randint(5, 500)
    code = f"""
        import numpy as np
        import sympy as sp
        x = sp.symbols("x")
        line = sp.lambdify(x, {a} * x + ({b}), "numpy")
        print(int(line(np.arange({n})).sum()))
        """
    return _case(code, a * n * (n - 1) // 2 + b * n)


PLAIN: Sequence[Callable[[random.Random], Case]] = (
    sum_of_lines,
    count_words,
    sieve,
    fractions_sum,
    memoised_recursion,
    shortest_path,
    dataclass_sort,
    regular_expression,
    unicode_text,
    big_integers,
    simulation,
    threads,
)
"""Kinds that need the standard library only."""
SCIENTIFIC: Sequence[Callable[[random.Random], Case]] = (
    numpy_reduction,
    numpy_linear_system,
    numpy_fourier,
    sympy_roots,
    sympy_derivative,
    sympy_integral,
    sympy_determinant,
    numpy_and_sympy,
)
"""Kinds that import numpy or sympy."""
