"""Write what the example is made of: `python -m examples.image_edit.generate`.

Beside this file, `train.jsonl` and `validation.jsonl` (columns `prompt` and `answer`), and `policy/` but for its weights: the
tokenizer and the model's description; in `runs/image_edit_sft/`, the dialogues of the warm start (column `messages`), none of
them about a question of `validation.jsonl`.
"""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import orjson

from agentrl.tools.loader import load_tool_file
from agentrl.types import Message
from examples.arithmetic.generate import write_rows
from examples.arithmetic.make_tokenizer import make_model_config, train_tokenizer
from examples.image_edit.problems import Edit, Problem, all_problems, results

HERE = Path(__file__).resolve().parent
DEMONSTRATIONS = Path("runs/image_edit_sft/demonstrations.jsonl")
NUM_VALIDATION_PROBLEMS = 96
NUM_DEMONSTRATIONS = 48_000
GUESS_SHARE = 0.4
"""Share of the dialogues that answer at once, without the tool."""
WRONG_EDIT_SHARE = 0.1
"""Share of the dialogues with wrong edits."""
PIECES = r'\n|", "|": "|, then | the '
"""Ends of tokens: a call is made of its arguments, and a question of its words for them."""


def write_problems(folder: Path) -> None:
    """Write `train.jsonl` and `validation.jsonl`, which share no question."""
    problems = all_problems()
    for name, some in (
        ("validation", problems[:NUM_VALIDATION_PROBLEMS]),
        ("train", problems[NUM_VALIDATION_PROBLEMS:]),
    ):
        write_rows(
            folder / f"{name}.jsonl", ({"prompt": problem.messages, "answer": problem.answer} for problem in some)
        )


def write_demonstrations(file: Path, number: int) -> None:
    """Write dialogues that call the tool rightly in form, and often for the wrong thing or not at all."""
    write_rows(file, ({"messages": dialogue} for dialogue in islice(demonstrations(seed=2), number)))


def write_model_description(folder: Path) -> None:
    """Write the tokenizer, trained on some of the dialogues, and `config.json`."""
    [tool] = load_tool_file(HERE / "tools.yaml")
    assert tool.tool_schema is not None
    tokenizer = train_tokenizer(islice(demonstrations(seed=3), 4000), tool.tool_schema, split_at=PIECES)
    tokenizer.save_pretrained(folder)
    make_model_config().save_pretrained(folder)
    print(f"wrote {folder}: {len(tokenizer)} tokens")


def demonstrations(seed: int) -> Iterator[list[Message]]:
    """Yield dialogues without end, none about a held-out question; the same ones for the same seed."""
    rng = random.Random(seed)
    problems = all_problems()[NUM_VALIDATION_PROBLEMS:]
    while True:
        yield _demonstrate(rng.choice(problems), rng.choice(problems), rng)


def _demonstrate(problem: Problem, other: Problem, rng: random.Random) -> list[Message]:
    draw = rng.random()
    if draw < GUESS_SHARE:
        return [*problem.messages, _answer(f"0.{rng.randrange(1, 400):03d}")]
    edits = other.edits if draw < GUESS_SHARE + WRONG_EDIT_SHARE else problem.edits
    answers = results(edits)
    turns = [turn for edit, result in zip(edits, answers, strict=True) for turn in _call(edit, result)]
    return [*problem.messages, *turns, _answer(str(answers[-1]["contrast"]))]


def _call(edit: Edit, result: dict[str, object]) -> list[Message]:
    function = {"name": "edit_image", "arguments": edit.arguments}
    call: Message = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
    return [call, {"role": "tool", "name": "edit_image", "content": orjson.dumps(result).decode()}]


def _answer(contrast: str) -> Message:
    return {"role": "assistant", "content": f"<answer>\\boxed{{{contrast}}}</answer>"}


if __name__ == "__main__":
    write_problems(HERE)
    write_model_description(HERE / "policy")
    write_demonstrations(DEMONSTRATIONS, NUM_DEMONSTRATIONS)
