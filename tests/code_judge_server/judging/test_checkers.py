"""Comparison of outputs with expected outputs."""

import sys
import time
import tracemalloc
from typing import Any

import pytest

from code_judge_server.judging.checkers import output_matches
from code_judge_server.schemas import Checker, CheckerKind


async def matches(kind: str, output: str | bytes, expected: str, **checker: Any) -> bool:
    data = output.encode() if isinstance(output, str) else output
    return await output_matches(Checker(kind=CheckerKind(kind), **checker), data, expected)


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [("a\n", "a\n", True), ("a\n", "a", False), ("a\r\n", "a\n", False), ("", "", True), ("\u00e4", "\u00e4", True)],
)
async def test_exact_is_byte_for_byte(output: str, expected: str, same: bool) -> None:
    assert await matches("exact", output, expected) is same


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        (" a b\n\n", "a b", True),
        ("a  b", "a b", False),
        ("\u3000a\u2028", "a", True),  # as `str.strip` has it, and code-judge with it
        ("a\r\n", "\na", True),
        ("a", "A", False),
    ],
)
async def test_stripped_ignores_white_space_at_both_ends(output: str, expected: str, same: bool) -> None:
    assert await matches("stripped", output, expected) is same


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 \n2\t\n", "1\n2", True),
        ("1\r\n2\r\n", "1\n2\n", True),
        ("1\n2\n", "1\r\n2", True),
        ("\n 1\n2\n\n", "1\n2", True),  # whatever `stripped` accepts
        ("1 2", "1\n2", False),
        ("1\n2", "1 2", False),
        ("1\n\n2", "1\n2", False),
        ("1\n 2", "1\n2", False),
        ("1  2 \n3", "1 2\n3", False),
        ("1 \n2", "1\n2\n3", False),
        ("1\n2\n3", "1 \n2", False),
        ("1\u00a0\n2", "1\n2", False),
        ("1\r2", "1\n2", False),
    ],
)
@pytest.mark.parametrize("padding", [0, 70_000])
async def test_lines_ignore_blanks_at_line_ends_and_keep_line_breaks(
    output: str, expected: str, same: bool, padding: int
) -> None:
    """The padding moves the comparison into a thread."""
    before = "x" * padding + "\n" if padding else ""
    if padding and output.startswith("\n"):
        same = False
    assert await matches("lines", before + output, before + expected) is same


async def test_the_default_checker_is_lines() -> None:
    assert Checker().kind is CheckerKind.LINES


@pytest.mark.slow
@pytest.mark.parametrize("line", [" " * 4_000_000, " \n" * 2_000_000], ids=["one line", "many lines"])
async def test_blanks_take_linear_time_and_little_memory(line: str) -> None:
    output, expected = f"a{line}b".encode(), "a" + line.replace(" \n", "\n") + "c"
    started_s = time.process_time()
    tracemalloc.start()
    try:
        assert not await matches("lines", output, expected)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - started_s < 10  # tracemalloc makes it slow
    assert peak_bytes < 5 * len(output)


@pytest.mark.parametrize("kind", ["exact", "lines", "stripped", "tokens", "floats"])
async def test_bytes_that_are_no_text_are_not_the_replacement_character(kind: str) -> None:
    assert not await matches(kind, b"a\xff", "a\ufffd")
    assert await matches(kind, "a\ufffd", "a\ufffd")


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1 2\n3", "1\t2 3\n", True),
        ("1 2", "1 2 3", False),
        ("1 2 3", "1 2", False),
        ("", " \n", True),
        ("12", "1 2", False),
        ("1.0", "1", False),
        ("a\u00a0b", "a b", False),  # white space is ASCII's, as in contests
    ],
)
@pytest.mark.parametrize("padding", [0, 70_000])
async def test_tokens_are_separated_by_white_space(output: str, expected: str, same: bool, padding: int) -> None:
    """The padding moves the words over the border between two chunks, and into a thread."""
    assert (
        await matches(
            "tokens", "x" * padding + " " + output, expected if not padding else "x" * padding + "\n" + expected
        )
        is same
    )


@pytest.mark.parametrize("size", [65_530, 65_535, 65_536, 65_537, 65_540, 131_072])
async def test_no_token_is_cut_where_chunks_meet(size: int) -> None:
    output = "a" * (size - 2) + " bc def"
    assert await matches("tokens", output, output.replace(" ", "\n"))
    assert not await matches("tokens", output, output.replace("bc", "b c"))


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1.0000001 x", "1 x", True),
        ("1.00001", "1", False),
        ("1000000.5", "1000000", True),  # within a millionth of it
        ("1000002", "1000000", False),
        ("0.0000005", "0", True),
        ("-0", "0", True),
        ("+1.5e0", "1.5", True),
        (".5", "0.5", True),
        ("5.", "5", True),
        ("x", "y", False),
        ("1", "x", False),
        ("1", "", False),
        ("", "1", False),
        ("nan", "NaN", True),
        ("-nan", "nan", True),
        ("nan", "1", False),
        ("1", "nan", False),
        ("inf", "Infinity", True),
        ("-inf", "inf", False),
        ("1e400", "inf", False),
        ("1e400", "2e400", False),
        ("1e400", "1.0000001e400", True),
        ("1e-400", "0", True),
        ("1_000", "1000", False),  # Python's own spelling is no contest's
        ("0x10", "16", False),
        ("\u0661", "1", False),
        ("1e" + "9" * 30, "2e" + "9" * 30, False),
        ("1e" + "9" * 30, "1e" + "9" * 30, True),
        ("snan", "snan", True),
        ("snan", "nan", False),
    ],
)
async def test_floats_are_close_within_either_tolerance(output: str, expected: str, same: bool) -> None:
    assert await matches("floats", output, expected) is same


@pytest.mark.parametrize(
    ("output", "absolute", "relative", "same"),
    [
        ("100.1", 0.2, 0.0, True),
        ("100.1", 0.05, 0.0, False),
        ("100.1", 0.0, 0.002, True),
        ("100.1", 0.0, 0.0005, False),
        ("100.0", 0.0, 0.0, True),
        ("100.0000000000000000001", 0.0, 0.0, False),
    ],
)
async def test_tolerances_are_those_of_the_checker(output: str, absolute: float, relative: float, same: bool) -> None:
    tolerances = {"absolute_tolerance": absolute, "relative_tolerance": relative}
    assert await matches("floats", output, "100", **tolerances) is same


async def test_integers_beyond_the_precision_of_floats_differ() -> None:
    exact = {"absolute_tolerance": 0.0, "relative_tolerance": 0.0}
    assert not await matches("floats", str(2**53 + 1), str(2**53), **exact)
    assert await matches("floats", f"{2**53 + 1}.0", str(2**53 + 1), **exact)


@pytest.mark.parametrize(
    "word",
    [
        "1" * 4_000_000,
        "1" * 2_000_000 + "." + "1" * 2_000_000,
        "1" * 4_000_000 + "x",
        "1e" + "1" * 4_000_000,
        "+" * 4_000_000,
    ],
    ids=["integer", "fraction", "almost a number", "exponent", "signs"],
)
async def test_a_huge_word_takes_no_more_than_linear_time(word: str) -> None:
    started_s = time.process_time()
    await matches("floats", word, word.replace("1", "2", 1) if "1" in word else word + "-")
    assert time.process_time() - started_s < 2


@pytest.mark.parametrize("kind", ["tokens", "floats"])
async def test_many_words_are_never_all_in_memory(kind: str) -> None:
    output = b"1 " * 2_000_000
    expected = output.decode() + "2"
    tracemalloc.start()
    try:
        assert not await matches(kind, output + b"3", expected)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    words_bytes = 2_000_001 * (sys.getsizeof(b"1") + 8)
    assert peak_bytes < 5 * len(output) < words_bytes
