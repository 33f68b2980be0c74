"""No text that a policy may write raises, or takes long: cut, spliced and repeated pieces of real calls, and noise."""

import random
import time

import pytest

from agentrl.formats.arguments import parameters_of
from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from tests.formats.rendering import OF_TRL, OWN, calls_of, rendered_turn
from tests.formats.test_round_trip import TOOLS, random_calls

NOISE = [
    "<think>",
    "</think>",
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "\\",
    "\n",
    "\x00",
    "\ud800",
    "🙂",
    "1e999",
    "NaN",
    "9" * 5000,
    "(" * 300,
]
TURNS = [
    rendered_turn(template, calls_of(template, random_calls(seed)), TOOLS)
    for template in OF_TRL | OWN
    for seed in range(4)
]


def hostile_text(rng: random.Random) -> str:
    text = rng.choice(TURNS)
    for _ in range(rng.randint(1, 6)):
        at, length = rng.randint(0, len(text)), rng.randint(0, 40)
        piece = rng.choice(
            [rng.choice(NOISE), rng.choice(TURNS)[at : at + length], text[at : at + length] * rng.randint(1, 5), ""]
        )
        text = text[:at] + piece + text[at + rng.choice([0, length]) :]
    return text


@pytest.mark.parametrize("name", FORMATS)
def test_no_text_raises(name: str) -> None:
    rng = random.Random(name)
    for _ in range(2400):
        text = hostile_text(rng)
        read = read_calls(FORMATS[name], text, parameters_of(TOOLS), id_prefix="0", in_thought=rng.random() < 0.2)
        assert 0 <= read.end <= len(text)
        assert all(call.parse_error or call.name for call in read.calls), text


@pytest.mark.parametrize("name", FORMATS)
def test_a_long_text_is_read_in_a_moment(name: str) -> None:
    openings = [turn[: len(turn) // 2] for turn in TURNS]
    texts = [
        piece * (200_000 // len(piece))
        for piece in [*openings, "<tool_call>", "<parameter=a>\n", "<think>", "[f(", "<function=a>"]
    ]
    for text in texts:
        begun = time.process_time()
        read_calls(FORMATS[name], text, parameters_of(TOOLS), id_prefix="0")
        assert time.process_time() - begun < 2.0, text[:200]
