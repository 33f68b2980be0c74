"""Trains the demo's policy with TRL's `GRPOTrainer`: `python -m examples.trl_grpo.train`.

TRL updates the weights; `python -m agentrl.serve configs/demo.yaml` plays the episodes, with tools, judge and reward. The two
meet in TRL's `rollout_func`: it hands the weights over as a folder, sends the prompts of a step, and returns trajectories.
"""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportPrivateImportUsage]

EXAMPLES = Path(__file__).parents[1] / "arithmetic"
SAMPLES = 16
"""Trajectories of a prompt."""
PROMPTS = 12
"""Prompts of a step."""

Row = dict[str, Any]


class RolloutService:
    """The rollout service, as one trainer uses it."""

    def __init__(self, url: str, *, folder: Path) -> None:
        """Take the service's address, and a folder for weights that both sides can read."""
        token = os.environ.get("AGENTRL_SERVICE_TOKEN")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(10, read=None))
        self._folder = folder
        self._num_pushed = 0

    def push(self, model: Any) -> None:
        """Hand the weights over; the folder of the version before stays until all engines have the new one."""
        path = self._folder / f"weights_{self._num_pushed % 2}"
        model.save_pretrained(path)
        self._client.post("/v1/weights", json={"path": str(path.resolve())}).raise_for_status()
        self._num_pushed += 1

    def roll_out(self, rows: Sequence[Row], samples: int) -> Iterator[Row]:
        """Yield trajectories as they end."""
        body = {"prompts": list(rows), "samples_per_prompt": samples}
        with self._client.stream("POST", "/v1/rollouts", json=body) as reply:
            if reply.is_error:
                raise RuntimeError(reply.read().decode())
            for line in map(json.loads, reply.iter_lines()):
                if line["kind"] == "error":
                    raise RuntimeError(line["message"])
                if line["kind"] == "trajectory":
                    yield line

    def accuracy(self, rows: Sequence[Row], samples: int) -> float:
        """Return the mean reward; RuntimeError if a trajectory was lost, which a mean of the others would hide."""
        trajectories = list(self.roll_out(rows, samples))
        if lost := [trajectory["failures"][-1] for trajectory in trajectories if trajectory["reward"] is None]:
            raise RuntimeError(f"{len(lost)} of {len(trajectories)} trajectories were lost, the first to {lost[0]}")
        return sum(trajectory["reward"] for trajectory in trajectories) / len(trajectories)


def rollout_func_of(service: RolloutService, rows: Sequence[Row], *, end_token: int) -> Any:
    """Return TRL's `rollout_func`: it gets each prompt `SAMPLES` times in a row, and answers in this order."""
    row_of = {json.dumps(row["prompt"]): row for row in rows}

    def rollout_func(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        service.push(trainer.accelerator.unwrap_model(trainer.model))
        step_rows = [row_of[json.dumps(prompt)] for prompt in prompts[::SAMPLES]]
        answers = service.roll_out([row | {"id": index} for index, row in enumerate(step_rows)], SAMPLES)
        trajectories = sorted(answers, key=lambda line: (int(line["prompt_id"]), line["sample_index"]))
        rewards = [line["reward"] for line in trajectories if line["reward"] is not None]
        if not rewards:
            raise RuntimeError(
                f"all {len(trajectories)} trajectories were lost, the first to {trajectories[0]['failures'][-1]}"
            )
        mean, num_lost = sum(rewards) / len(rewards), len(trajectories) - len(rewards)
        print(f"step {trainer.state.global_step + 1}: mean reward {mean:.3f}, {num_lost} lost", flush=True)
        fields = [trl_fields(line, nothing=end_token) for line in trajectories]
        return {name: [values[name] for values in fields] for name in fields[0]}

    return rollout_func


def trl_fields(trajectory: Row, *, nothing: int) -> dict[str, Any]:
    """Return what TRL wants of a trajectory.

    `env_mask` keeps the tokens of tools out of the loss. A trajectory that was lost, or is not to be trained on, becomes the
    token `nothing` without loss, and its reward None, which TRL leaves out of its group.

    Raises:
        ValueError: it has several rows, which TRL's `rollout_func` cannot return.
    """
    if trajectory.get("row_starts"):
        raise ValueError(
            f"trajectory {trajectory['trajectory_id']}: several rows (`row_starts`), which this example cannot train on"
        )
    start = trajectory["num_prompt_tokens"]
    if trajectory["reward"] is None or trajectory["is_masked"]:
        return {"prompt_ids": [nothing], "completion_ids": [nothing], "logprobs": [0.0], "env_mask": [0], "score": None}
    return {
        "prompt_ids": trajectory["token_ids"][:start],
        "completion_ids": trajectory["token_ids"][start:],
        "logprobs": [0.0 if value is None else value for value in trajectory["rollout_logprobs"][start:]],
        "env_mask": trajectory["response_mask"][start:],
        "score": trajectory["reward"],
    }


def reward_of_service(score: list[float | None], **_: Any) -> list[float | None]:
    """Return the rewards that came with the trajectories, as TRL's reward function."""
    return score


def read_rows(file: Path) -> list[Row]:
    """Return the rows of a JSONL file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def main() -> None:
    """Train, and print the accuracy on held-out prompts before and after."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8400")
    parser.add_argument("--output", type=Path, default=Path("runs/trl_grpo"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--held-out", type=int, default=256, help="prompts to measure the accuracy on")
    words = parser.parse_args()
    disable_progress_bar()  # of every folder of weights
    rows, held_out = (read_rows(EXAMPLES / f"{name}.jsonl") for name in ("train", "validation"))
    service = RolloutService(words.url, folder=words.output)
    tokenizer = AutoTokenizer.from_pretrained(EXAMPLES / "policy")
    model = AutoModelForCausalLM.from_pretrained(EXAMPLES / "policy")
    service.push(model)
    before = service.accuracy(held_out[: words.held_out], 2)
    config = GRPOConfig(
        output_dir=str(words.output),
        max_steps=words.steps,
        per_device_train_batch_size=PROMPTS * SAMPLES,
        num_generations=SAMPLES,
        learning_rate=3e-4,
        lr_scheduler_type="constant",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward_of_service,
        rollout_func=rollout_func_of(service, rows, end_token=tokenizer.eos_token_id),
        args=config,
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    service.push(model)
    after = service.accuracy(held_out[: words.held_out], 2)
    print(f"accuracy on held-out prompts: {before:.3f} before, {after:.3f} after {words.steps} steps")


if __name__ == "__main__":
    main()
