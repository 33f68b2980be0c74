"""Conversations, tokens and groups as the dashboard hands them to its pages."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from agentrl.dashboard.app import Dashboard
from agentrl.dashboard.queries import prompt_history
from agentrl.dashboard.records import TokenTexts
from agentrl.dashboard.runs import open_runs
from agentrl.trajectories.index import RunIndex
from agentrl.trajectories.store import TrajectoryStore
from tests.dashboard.run_folder import TURN, trajectory, write_run, write_trajectories

GREEK = "\u03b1"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


@pytest.fixture
def client(run_dir: Path) -> Iterator[TestClient]:
    with TestClient(Dashboard(open_runs([run_dir])).build(token=None), base_url="http://localhost") as client:
        yield client


def get(client: TestClient, what: str, **parameters: Any) -> Any:
    response = client.get(f"/api/runs/run/{what}", params=parameters)
    assert response.status_code == 200, response.text
    return response.json()


def byte_tokenizer(folder: Path) -> None:
    """Write a tokenizer with a token per byte, and one for ` the`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: number for number, sign in enumerate([*alphabet, "\u0120the"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))


def test_a_trajectory_comes_with_its_prompt_its_neighbours_and_its_group(client: TestClient):
    rows = get(client, "trajectories", file="step_000001")["rows"]
    found = get(client, "trajectory", file="step_000001", offset=rows[1]["offset"])
    assert found["record"]["trajectory_id"] == "1-p0-1"
    assert found["record"]["turns"][0]["sampled"]["queue_s"] == 0.1
    assert found["prompt"]["messages"][0]["content"] == "What is 0 + 3?"
    assert (found["place"]["before"], found["place"]["after"]) == (rows[0]["offset"], rows[2]["offset"])
    assert [reward for _, reward in found["group"]] == [0.0, 1.0, 0.0, 1.0]


def test_the_first_trajectory_has_none_before_it_and_the_last_none_after_it(client: TestClient):
    rows = get(client, "trajectories", file="step_000001")["rows"]
    ends = [get(client, "trajectory", file="step_000001", offset=row["offset"])["place"] for row in (rows[0], rows[-1])]
    assert (ends[0]["before"], ends[1]["after"]) == (None, None)


def test_an_offset_between_trajectories_is_refused(client: TestClient):
    response = client.get("/api/runs/run/trajectory", params={"file": "step_000001", "offset": 1})
    assert response.status_code == 404
    assert "no trajectory at byte 1" in response.json()["error"]


def test_tokens_are_columns_and_ids_stand_for_texts_without_a_tokenizer(client: TestClient):
    rows = get(client, "trajectories", file="step_000002")["rows"]
    found = get(client, "tokens", file="step_000002", offset=rows[0]["offset"])
    assert not found["has_text"]
    assert "".join(found["texts"][index] for index in found["index_of_text"]) == "11 12 13 21 22 23 24 "
    assert found["logprobs"] == [None, None, None, -0.1, -0.5, -2.0, -0.01]
    assert found["mask"] == [0, 0, 0, 1, 1, 1, 1]
    assert found["version_spans"] == [[3, 1]]


def test_a_group_has_the_tokens_after_the_prompt(client: TestClient):
    found = get(client, "group", file="step_000001", prompt_id="p1")
    assert [member["token_ids"][2] for member in found["members"]] == [23, 24, 25, 26]
    assert [member["place"]["sample_index"] for member in found["members"]] == [0, 1, 2, 3]


def test_a_prompt_has_its_rewards_in_every_step(client: TestClient):
    steps = get(client, "history", prompt_id="p1")["steps"]
    assert [step["file"] for step in steps] == ["step_000001", "step_000002"]
    assert [reward for _, reward in steps[1]["rewards"]] == [0.0, 1.0, 0.0, 1.0]
    assert get(client, "history", prompt_id="unknown")["steps"] == []


def test_a_training_prompt_has_its_rewards_in_every_epoch(tmp_path: Path):
    ids = ("train-1", "train-10", "train-1@epoch1", "train-1@epoch2")
    for step, prompt_id in enumerate(ids, start=1):
        item = trajectory(step, 0, 0, prompt_id=prompt_id)
        TrajectoryStore(tmp_path).append(step, [item])
    index = RunIndex(tmp_path)
    index.update()
    for prompt_id in ("train-1", "train-1@epoch2"):
        steps = prompt_history(index.connection, prompt_id)
        assert [step["prompt_id"] for step in steps] == ["train-1", "train-1@epoch1", "train-1@epoch2"]


def test_texts_come_from_the_policy_that_the_run_left(run_dir: Path):
    byte_tokenizer(run_dir / "policy")
    texts = TokenTexts.of_run(run_dir, "a/model/that/is/not/here")
    assert texts is not None
    vocabulary = Tokenizer.from_file(str(run_dir / "policy" / "tokenizer.json")).get_vocab()
    greek = [
        vocabulary[sign]
        for sign in Tokenizer.from_file(str(run_dir / "policy" / "tokenizer.json")).encode(GREEK).tokens
    ]
    assert len(greek) == 2
    # A space at the beginning stays, and a character of two tokens is whole in the first.
    assert texts.of([vocabulary["\u0120the"], *greek, vocabulary["x"]]) == [" the", GREEK, "", "x"]
    assert texts.of(greek[:1]) == ["\ufffd"]


def test_half_a_surrogate_pair_in_a_call_does_not_break_the_page(run_dir: Path):
    call = replace(TURN.calls[0], arguments={"code": "print('\ud83d')"})
    path = write_trajectories(run_dir, 9, [trajectory(9, 0, 0, turns=(replace(TURN, calls=(call,)),))])
    with TestClient(Dashboard(open_runs([run_dir])).build(token=None), base_url="http://localhost") as client:
        found = get(client, "trajectory", file=path.stem, offset=0)
    assert "\\ud83d" in str(found["record"]["turns"][0]["calls"][0]["arguments"])
