"""Threads of the processes that compute without a GPU."""

import pytest

from agentrl.cluster.threads import threads_per_engine, threads_per_rank, with_threads
from agentrl.config.load import load_run_config
from agentrl.config.schema import RunConfig


def config(*words: str) -> RunConfig:
    return load_run_config("configs/demo.yaml", words).config


@pytest.mark.parametrize(
    ("words", "rank", "engine"),
    [
        ([], 16, 16),  # they take turns
        (["rollout.num_engines=4", "actor.num_workers=2"], 8, 4),
        (["rollout.max_staleness=1"], 8, 8),
        (["rollout.max_staleness=1", "rollout.num_engines=2"], 8, 4),
        (["rollout.num_engines=32", "actor.num_workers=32", "rollout.prompts_per_step=32"], 1, 1),
        (["rollout.num_threads_per_engine=3", "actor.num_threads_per_worker=5", "rollout.max_staleness=1"], 5, 3),
    ],
)
def test_processes_that_compute_at_once_share_the_cores(words: list[str], rank: int, engine: int):
    assert threads_per_rank(config(*words), 16) == rank
    assert threads_per_engine(config(*words), 16) == engine


def test_an_odd_core_goes_to_the_engine():
    assert threads_per_rank(config("rollout.max_staleness=1"), 3) == 1
    assert threads_per_engine(config("rollout.max_staleness=1"), 3) == 2


def test_an_engine_is_given_its_threads():
    assert with_threads(config("rollout.num_threads_per_engine=7")).rollout.num_threads_per_engine == 7
    assert with_threads(config()).rollout.num_threads_per_engine == threads_per_engine(config())
