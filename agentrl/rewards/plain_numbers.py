"""Numbers as text that `math-verify` reads as these numbers.

It reads `1e-05` as LaTeX: the constant e less 5. Data sets have such text, because Python writes 0.00001 so, and policies too.
"""

import re
from decimal import Decimal

_SCIENTIFIC = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)[eE][+-]?\d{1,3}")
"""Three digits of exponent, as many as a float has: a policy's `1e999999999` must not become a gigabyte of zeros."""


def number_text(number: float) -> str:
    """Return a finite number as a plain decimal.

    >>> number_text(42.0), number_text(0.1), number_text(1e-05), number_text(1e16)
    ('42', '0.1', '0.00001', '10000000000000000')
    """
    return str(int(number)) if number == int(number) else without_exponent(repr(number))


def without_exponent(text: str) -> str:
    """Return a number in scientific notation as a plain decimal, and any other text as it is.

    >>> without_exponent("1e-05"), without_exponent("2.5E3"), without_exponent("x + 1e5")
    ('0.00001', '2500', 'x + 1e5')
    """
    return format(Decimal(text), "f") if _SCIENTIFIC.fullmatch(text) else text
