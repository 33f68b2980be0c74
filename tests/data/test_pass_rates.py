from pathlib import Path

import orjson
import pytest

from agentrl.data.pass_rates import PassRates
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError
from agentrl.types import TrajectorySummary
from tests.summaries import SELECTION, short_summary


def made(prompt_id: str, *rewards: float | None) -> list[TrajectorySummary]:
    return [short_summary(prompt_id, index, reward=reward) for index, reward in enumerate(rewards)]


def left_out(rates: PassRates, max_pass_rate: float | None) -> frozenset[str]:
    rates.leave_out_above(max_pass_rate)
    return rates.left_out


def test_prompts_that_are_solved_too_often_are_left_out_and_unseen_ones_stay():
    rates = PassRates()
    rates.record([*made("always", 1.0, 1.0), *made("half", 1.0, 0.0), *made("never", 0.0, 0.0)], SELECTION)
    assert left_out(rates, 0.99) == {"always"}
    assert left_out(rates, 0.25) == {"always", "half"}
    assert left_out(rates, 0.5) == {"always"}
    assert left_out(rates, None) == frozenset()


def test_the_last_rollout_counts_whatever_its_epoch():
    rates = PassRates()
    rates.record(made("p", 0.0, 0.0), SELECTION)
    rates.record(made("p@epoch3", 1.0, 1.0), SELECTION)
    assert left_out(rates, 0.99) == {"p"}


def test_what_the_infrastructure_lost_says_nothing_about_a_prompt():
    rates = PassRates()
    rates.record([*made("p", None, 1.0, 1.0), *made("q", None)], SELECTION)
    assert left_out(rates, 0.99) == {"p"}


def test_rates_come_back_as_they_were():
    rates = PassRates()
    rates.record([*made("always", 1.0), *made("never", 0.0)], SELECTION)
    rates.leave_out_above(0.5)
    decoded = PassRates.decode(rates.encode())
    assert decoded.left_out == {"always"}
    assert decoded.encode() == rates.encode()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    rows = [{"id": name, "prompt": "Compute.", "answer": "1"} for name in "abcde"]
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))
    return path


def dataset(file: Path, leave_out: set[str]) -> PromptDataset:
    return PromptDataset(
        [file], prompt_key="prompt", answer_key="answer", system_prompt=None, shuffle=True, seed=1
    ).without(leave_out)


def test_a_data_set_leaves_prompts_out_in_every_epoch(file: Path):
    prompts = dataset(file, {"b", "d"})
    assert len(prompts) == 3
    assert {prompt.prompt_id.partition("@")[0] for prompt in prompts.take(9)} == {"a", "c", "e"}


def test_a_data_set_of_which_everything_is_left_out_is_refused(file: Path):
    with pytest.raises(ConfigError, match=r"none of the 5 prompts of .* is left"):
        dataset(file, set("abcde"))


def test_what_was_counted_after_a_checkpoint_is_forgotten_and_what_is_left_out_stays():
    rates = PassRates({"a": 1.0, "b": 0.5})
    saved = PassRates.decode(rates.encode())
    rates.leave_out_above(0.9)
    rates.record(made("b", 1.0, 1.0), SELECTION)
    rates.go_back_to(saved)
    assert rates.left_out == {"a"}
    rates.leave_out_above(0.4)
    assert rates.left_out == {"a", "b"}
    rates.leave_out_above(0.6)
    assert rates.left_out == {"a"}, "b is as it was"
