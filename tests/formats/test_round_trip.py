"""Reference: a call that a model's own chat template writes is read back equal."""

import random
from typing import Any

import pytest

from agentrl.formats.arguments import parameters_of
from agentrl.formats.base import read_calls
from agentrl.formats.registry import FORMATS
from tests.formats.rendering import OF_TRL, OWN, calls_of, rendered_turn

FORMAT_OF = OF_TRL | {name: name for name in OWN}
PROPERTIES: dict[str, Any] = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "nested": {"type": "object"},
    "items": {"type": "array"},
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": name, "description": "Do it.", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
    for name in ("run_code", "look-up")
]
TEXTS = [
    "print('hello')\nprint(\"x\")\n",
    "for i in range(3):\n\tif i < 2 and i > 0:\n\t\tprint(f'{i}\\n')",
    'a "quoted" word, a \\ backslash and a \\n that is two characters',
    "été — 漢字 🙂",
    "</tool_call> <parameter=x> </arg_value> [/TOOL_CALLS] ``` {'a': 1}",
    "12",
    "true",
    "",
    " leading and trailing ",
]


def random_calls(seed: int) -> list[tuple[str, dict[str, Any]]]:
    rng = random.Random(seed)
    return [(rng.choice(["run_code", "look-up"]), random_arguments(rng)) for _ in range(rng.randint(1, 3))]


def random_arguments(rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {
        "text": rng.choice(TEXTS),
        "number": rng.randint(-(10**9), 10**9),
        "ratio": round(rng.uniform(-10, 10), 3),
        "flag": rng.random() < 0.5,
        "nested": {"key": rng.choice(TEXTS), "list": [1, "x", None, True, {"deep": rng.choice(TEXTS)}]},
        "items": [rng.choice(TEXTS), 2, False],
    }
    return {key: values[key] for key in sorted(values) if rng.random() < 0.6}


@pytest.mark.parametrize("template", FORMAT_OF)
def test_calls_that_a_template_writes_are_read_back_equal(template: str) -> None:
    grammar = FORMATS[FORMAT_OF[template]]
    for seed in range(200):
        wanted = calls_of(template, random_calls(seed))
        turn = rendered_turn(template, wanted, TOOLS)
        read = read_calls(grammar, turn, parameters_of(TOOLS), id_prefix="0")
        assert [(call.name, call.arguments, call.parse_error) for call in read.calls] == [
            (name, arguments, "") for name, arguments in wanted
        ], turn
