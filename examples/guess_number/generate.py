"""Write what the example is made of: `python -m examples.guess_number.generate`.

Beside this file, `train.jsonl` (columns `prompt` and `answer`), and `policy/` but for its weights: the tokenizer and the
model's description; in `runs/guess_number_sft/`, the dialogues of the warm start (column `messages`).
"""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from transformers import Qwen3Config

from agentrl.types import Message
from examples.arithmetic.generate import write_rows
from examples.arithmetic.make_tokenizer import make_model_config, train_tokenizer

HERE = Path(__file__).resolve().parent
DEMONSTRATIONS = Path("runs/guess_number_sft/demonstrations.jsonl")
QUESTION = "I think of a number from 1 to 20. Guess it; I say higher or lower."
NUMBERS = range(1, 21)
MAX_TURNS = 5
"""Guesses of a dialogue, as in `run.yaml`; halving the interval needs no more."""
GOOD_SHARE = 0.3
"""Share of the guesses that halve the interval; the others are any number."""
NUM_DEMONSTRATIONS = 60_000


def demonstrations(seed: int) -> Iterator[list[Message]]:
    """Yield dialogues without end; the same ones for the same seed."""
    rng = random.Random(seed)
    while True:
        yield _play(rng.choice(NUMBERS), rng)


def _play(hidden: int, rng: random.Random) -> list[Message]:
    messages: list[Message] = [{"role": "user", "content": QUESTION}]
    low, high = NUMBERS[0], NUMBERS[-1]
    for turn in range(MAX_TURNS):
        guess = (low + high) // 2 if rng.random() < GOOD_SHARE else rng.choice(NUMBERS)
        messages.append({"role": "assistant", "content": str(guess)})
        if guess == hidden or turn + 1 == MAX_TURNS:
            break
        is_higher = hidden > guess
        low, high = (max(low, guess + 1), high) if is_higher else (low, min(high, guess - 1))
        messages.append({"role": "user", "content": "higher" if is_higher else "lower"})
    return messages


def write_model_description(folder: Path) -> None:
    """Write the tokenizer, trained on some of the dialogues, and `config.json`."""
    tokenizer = train_tokenizer(islice(demonstrations(seed=3), 500), None, split_at=r"\n")
    tokenizer.save_pretrained(folder)
    make_config(len(tokenizer)).save_pretrained(folder)
    print(f"wrote {folder}: {len(tokenizer)} tokens")


def make_config(vocab_size: int) -> Qwen3Config:
    """Describe a Qwen3 model of 0.2 million parameters."""
    config = make_model_config()
    config.update(
        {
            "vocab_size": vocab_size,
            "hidden_size": 64,
            "intermediate_size": 256,
            "head_dim": 16,
            "max_position_embeddings": 512,
        }
    )
    return config


def rows() -> list[dict[str, object]]:
    """Return a row for each number; the prompts are equal, so that nothing but the answers tells which it is."""
    return [{"prompt": [{"role": "user", "content": QUESTION}], "answer": str(number)} for number in NUMBERS]


if __name__ == "__main__":
    write_rows(HERE / "train.jsonl", rows())
    write_model_description(HERE / "policy")
    dialogues = islice(demonstrations(seed=2), NUM_DEMONSTRATIONS)
    write_rows(DEMONSTRATIONS, ({"messages": dialogue} for dialogue in dialogues))
