"""Write the example's data: `python -m examples.arithmetic.generate {problems,demonstrations} [--help]`.

`problems` writes `train.jsonl` and `validation.jsonl` (columns `prompt`, `answer`); `demonstrations` writes the dialogues
of the warm start (column `messages`). The same command writes the same bytes, and no validation question is in either of
the other two.
"""

import argparse
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from examples.arithmetic.demonstrations import demonstrations, prompt_messages
from examples.arithmetic.problems import Problem, distinct_problems

HERE = Path(__file__).resolve().parent
NUM_VALIDATION_PROBLEMS = 256
NUM_TRAINING_PROBLEMS = 2048
PROBLEM_SEED = 1
DEMONSTRATION_SEED = 2


def validation_problems() -> list[Problem]:
    """Return the held-out problems: the first of the sequence."""
    return list(islice(distinct_problems(PROBLEM_SEED), NUM_VALIDATION_PROBLEMS))


def training_problems() -> list[Problem]:
    """Return the problems of reinforcement learning: those that follow the held-out ones."""
    end = NUM_VALIDATION_PROBLEMS + NUM_TRAINING_PROBLEMS
    return list(islice(distinct_problems(PROBLEM_SEED), NUM_VALIDATION_PROBLEMS, end))


def write_problems(folder: Path) -> None:
    """Write `train.jsonl` and `validation.jsonl`."""
    for name, problems in (("train", training_problems()), ("validation", validation_problems())):
        rows = ({"prompt": prompt_messages(problem), "answer": str(problem.answer)} for problem in problems)
        write_rows(folder / f"{name}.jsonl", rows)


def write_demonstrations(file: Path, number: int) -> None:
    """Write `number` noisy dialogues, none of them about a validation question."""
    held_out = frozenset(problem.question for problem in validation_problems())
    dialogues = islice(demonstrations(DEMONSTRATION_SEED, held_out), number)
    write_rows(file, ({"messages": dialogue} for dialogue in dialogues))


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSONL, and say so."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows))
    print(f"wrote {file}")


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description="Write the data of the arithmetic example.")
    commands = parser.add_subparsers(dest="command", required=True)
    problems = commands.add_parser("problems", help="train.jsonl and validation.jsonl")
    problems.add_argument("--folder", type=Path, default=HERE)
    dialogues = commands.add_parser("demonstrations", help="the dialogues of the warm start")
    dialogues.add_argument("--file", type=Path, default=Path("runs/arithmetic_sft/demonstrations.jsonl"))
    dialogues.add_argument("--number", type=int, default=76_800)
    arguments = parser.parse_args()
    if arguments.command == "problems":
        write_problems(arguments.folder)
    else:
        write_demonstrations(arguments.file, arguments.number)


if __name__ == "__main__":
    main()
