"""The worked example of an environment: its files, its game, and where its policy starts."""

from itertools import islice
from pathlib import Path

import orjson

from agentrl.config.load import load_run_config
from agentrl.tools.base import Episode
from agentrl.types import Deadline, Prompt, Turn
from examples.guess_number.game import GuessNumber
from examples.guess_number.generate import MAX_TURNS, NUMBERS, demonstrations, rows, write_model_description

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "guess_number"


def test_the_committed_files_are_those_that_the_command_writes(tmp_path: Path):
    write_model_description(tmp_path)
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (EXAMPLE / "policy" / name).read_bytes(), f"{name}: see the README"
    assert [orjson.loads(line) for line in (EXAMPLE / "train.jsonl").read_bytes().splitlines()] == rows()
    assert load_run_config(str(EXAMPLE / "run.yaml")).config.rollout.max_turns == MAX_TURNS


async def test_the_dialogues_of_the_warm_start_are_those_of_the_game():
    game = GuessNumber({"penalty": -0.1})
    for dialogue in islice(demonstrations(seed=4), 200):
        guesses = [Turn(text=message["content"]) for message in dialogue if message["role"] == "assistant"]
        said = [message["content"] for message in dialogue[2:] if message["role"] == "user"]
        fitting = 0
        for hidden in NUMBERS:
            prompt = Prompt(prompt_id="p", messages=dialogue[:1], answer=str(hidden))
            answers = [
                await game.observe(Episode(episode_id="e", prompt_id="p"), prompt, (guess,), deadline=Deadline.after(9))
                for guess in guesses
            ]
            fitting += [answer.text for answer in answers[: len(said)]] == said
        assert fitting
