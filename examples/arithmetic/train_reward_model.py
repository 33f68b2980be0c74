"""Trains a reward model for `configs/demo_ppo.yaml`: `python -m examples.arithmetic.train_reward_model [--help]`.

It starts from the policy, with one number on top, and learns from dialogues like those of the warm start whether the answer at
the end is right: whether the tool was asked for the right thing, and whether its word was taken. It never sees a reference
answer. The same command on the same machine gives the same weights.
"""

import argparse
import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.models.tokenizer import load_tokenizer
from agentrl.tools.python_tool import PYTHON_TOOL_SCHEMA
from agentrl.training.model.decoder import apply_umask, load_classifier
from agentrl.training.model.scalar_model import ScalarModel, classifier_model, whole_sequence
from agentrl.training.packing.packing import pack_tokens
from agentrl.types import Message
from examples.arithmetic.demonstrations import Strategy, demonstrate, prompt_messages
from examples.arithmetic.generate import validation_problems
from examples.arithmetic.problems import Problem, distinct_problems

HERE = Path(__file__).resolve().parent
SEED = 3
MIXTURE = {
    Strategy.RIGHT_CALL: 0.5,
    Strategy.WRONG_EXPRESSION: 0.25,
    Strategy.GUESS: 0.1,
    Strategy.UNPARSABLE_CALL: 0.08,
    Strategy.BROKEN_PROGRAM: 0.07,
}
"""About as many right answers as wrong ones, and enough of the wrong ones that are hard to tell."""


def judged_dialogues(problems: Iterator[Problem], rng: random.Random) -> Iterator[tuple[list[Message], float]]:
    """Yield dialogues about `problems`, each with 1 where its last word is the right answer, else 0."""
    for problem in problems:
        (strategy,) = rng.choices(tuple(MIXTURE), weights=tuple(MIXTURE.values()))
        said = demonstrate(problem, strategy, rng)
        yield prompt_messages(problem) + said, float(f"\\boxed{{{problem.answer}}}" in said[-1]["content"])


def training_dialogues() -> Iterator[tuple[list[Message], float]]:
    """Yield dialogues without end, none about a held-out question."""
    held_out = {problem.question for problem in validation_problems()}
    problems = (problem for problem in distinct_problems(SEED) if problem.question not in held_out)
    return judged_dialogues(problems, random.Random(SEED))


def held_out_dialogues() -> Iterator[tuple[list[Message], float]]:
    """Yield one dialogue about each held-out problem."""
    return judged_dialogues(iter(validation_problems()), random.Random(SEED))


class Reader:
    """Scores batches of dialogues."""

    def __init__(self, model: ScalarModel, policy: Path) -> None:
        """Take the model, and the folder whose tokenizer it reads with."""
        self._model = model
        self._tokens = ChatTokens(load_tokenizer(str(policy)), [PYTHON_TOOL_SCHEMA.as_template_dict()])

    def logits(self, dialogues: list[list[Message]]) -> Tensor:
        """Return a number for each dialogue, above 0 where the answer seems right."""
        sequences = [whole_sequence(self._tokens.conversation(dialogue)[0]) for dialogue in dialogues]
        longest_first = sorted(range(len(sequences)), key=lambda i: -len(sequences[i].token_ids))
        logits = self._model(pack_tokens([sequences[i] for i in longest_first]))
        return logits[torch.tensor(longest_first).argsort()]


def train(policy: Path, folder: Path, *, num_steps: int, batch_size: int, learning_rate: float) -> float:
    """Train, write the model to `folder`, and return the share of held-out dialogues that it judges rightly."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    classifier = load_classifier(str(policy), num_labels=1)
    model = classifier_model(classifier)
    reader = Reader(model, policy)
    optimiser = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=num_steps, pct_start=0.1)
    dialogues = training_dialogues()
    for step in range(1, num_steps + 1):
        batch = list(islice(dialogues, batch_size))
        logits = reader.logits([dialogue for dialogue, _ in batch])
        loss = functional.binary_cross_entropy_with_logits(logits, torch.tensor([label for _, label in batch]))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    classifier.bfloat16().save_pretrained(folder)
    apply_umask(folder)
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy2(policy / file, folder / file)
    return accuracy(folder, policy)


@torch.no_grad()
def accuracy(folder: Path, policy: Path) -> float:
    """Return the share of held-out dialogues that a written model judges rightly."""
    reader = Reader(classifier_model(load_classifier(str(folder))), policy)
    held_out = list(held_out_dialogues())
    logits = reader.logits([dialogue for dialogue, _ in held_out])
    right = [(logit > 0) == (label > 0) for logit, (_, label) in zip(logits.tolist(), held_out, strict=True)]
    return sum(right) / len(right)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description="Train the reward model of the arithmetic example.")
    parser.add_argument("--policy", type=Path, default=HERE / "policy")
    parser.add_argument("--folder", type=Path, default=HERE / "reward_model")
    parser.add_argument("--num-steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    arguments = parser.parse_args()
    share = train(
        arguments.policy,
        arguments.folder,
        num_steps=arguments.num_steps,
        batch_size=arguments.batch_size,
        learning_rate=arguments.learning_rate,
    )
    print(f"{share:.3f} of the held-out dialogues are judged rightly; wrote {arguments.folder}")


if __name__ == "__main__":
    main()
