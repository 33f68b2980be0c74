"""Comparison of outputs with expected outputs, in time linear in their size and with little additional memory.

A comparison by a program of the user is in `deciding_program`.
"""

import asyncio
import re
from collections.abc import Iterator
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from itertools import zip_longest

from code_judge_server.schemas import Checker, CheckerKind

_CHUNK_BYTES = 1 << 16
_OFF_LOOP_BYTES = 1 << 16
"""Larger texts are compared in a thread, as they take some milliseconds."""
_WHITE_SPACE = re.compile(rb"\s")
_BLANKS = " \t\r\f\v"
_BLANK_AT_LINE_END = re.compile(r"[ \t\r\f\v]\n")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")
_NOT_FINITE = re.compile(rb"([+-]?)(inf|infinity|nan)", re.IGNORECASE)
# Decimals, because a float cannot tell 1e400 from 2e400, or 2**53 from 2**53 + 1. Fifty digits are for the difference only.
_ARITHMETIC = Context(prec=50, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[InvalidOperation])


async def output_matches(checker: Checker, output: bytes, expected: str) -> bool:
    """Return whether `output` matches `expected`; `checker` is not of kind `program`."""
    wanted = expected.encode()
    if output == wanted:
        return True
    match checker.kind:
        case CheckerKind.EXACT:
            return False
        case CheckerKind.STRIPPED | CheckerKind.LINES:
            return await _texts_match(checker.kind, output, expected)
    if len(output) + len(wanted) > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(_words_match, checker, output, wanted)
    return _words_match(checker, output, wanted)


async def _texts_match(kind: CheckerKind, output: bytes, expected: str) -> bool:
    try:
        text, wanted = output.decode().strip(), expected.strip()
    except UnicodeDecodeError:
        return False
    if text == wanted:
        return True
    if kind is CheckerKind.STRIPPED or not (_BLANK_AT_LINE_END.search(text) or _BLANK_AT_LINE_END.search(wanted)):
        return False
    if len(text) + len(wanted) > _OFF_LOOP_BYTES:
        return await asyncio.to_thread(_lines_match, text, wanted)
    return _lines_match(text, wanted)


def _lines_match(text: str, wanted: str) -> bool:
    return all(got == want for got, want in zip_longest(_lines(text), _lines(wanted)))


def _lines(text: str) -> Iterator[str]:
    """Yield the lines without blanks at their ends, without a list of all lines."""
    start = 0
    while (end := text.find("\n", start)) >= 0:
        yield text[start:end].rstrip(_BLANKS)
        start = end + 1
    yield text[start:].rstrip(_BLANKS)


def _words_match(checker: Checker, output: bytes, wanted: bytes) -> bool:
    if checker.kind is CheckerKind.TOKENS:
        return all(got == want for got, want in zip_longest(_words(output), _words(wanted)))
    absolute, relative = Decimal(checker.absolute_tolerance), Decimal(checker.relative_tolerance)
    return all(
        got == want or (got is not None and want is not None and _are_close(got, want, absolute, relative))
        for got, want in zip_longest(_words(output), _words(wanted))
    )


def _words(text: bytes) -> Iterator[bytes]:
    """Yield the words between ASCII white space, without a list of all words."""
    start = 0
    while start < len(text):
        space = _WHITE_SPACE.search(text, start + _CHUNK_BYTES)
        end = len(text) if space is None else space.end()
        yield from text[start:end].split()
        start = end


def _are_close(got: bytes, want: bytes, absolute: Decimal, relative: Decimal) -> bool:
    """Return whether two words are numbers within either tolerance; inf equals inf of the same sign, nan equals nan."""
    if not (_NUMBER.fullmatch(got) and _NUMBER.fullmatch(want)):
        special = _not_finite(want)
        return special is not None and special == _not_finite(got)
    try:
        number, target = Decimal(got.decode()), Decimal(want.decode())
        difference = _ARITHMETIC.subtract(number, target).copy_abs()
        return difference <= absolute or difference <= _ARITHMETIC.multiply(relative, target.copy_abs())
    except InvalidOperation:  # an exponent beyond 10**18
        return False


def _not_finite(word: bytes) -> str | None:
    match = _NOT_FINITE.fullmatch(word)
    if match is None:
        return None
    if match[2].lower() == b"nan":
        return "nan"
    return "-inf" if match[1] == b"-" else "inf"
