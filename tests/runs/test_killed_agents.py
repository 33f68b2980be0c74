"""Agents, engine, agent-loop worker and judge killed at seeded calls of a run whose episodes a program plays.

Every step ends, no token is trained twice, nothing that failed is rewarded, and nothing is left.
"""

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from agentrl.trajectories.store import TrajectoryStore, read_trajectories
from agentrl.types import FailureClass
from benchmarks.gateway.program_agent import AGENT_MODULE, TOOL, CallEvent
from benchmarks.rollout.killed_run import CallKill, Outcome, Victim, calls_file, play
from tests.runners.run_process import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1500)]

_SEED = 11
_MAX_CALLS = 50
"""Calls between two kills, fewer than a step has."""
_OVERRIDES = [
    *SMALL,
    "tool_config_path=null",
    "rollout.max_concurrent_trajectories=16",
    "reward.class_name=benchmarks.gateway.judged_programs.JudgedPrograms",
    "reward.config={host_addr: null}",
]
_DEATHS = (FailureClass.WORKER, FailureClass.ENGINE)
"""Failures by which a killed agent's own is forgotten: they ended the episode that repeated it."""


@pytest.mark.slow
def test_a_run_survives_the_death_of_each_part_and_its_tokens_add_up():
    check_run(dict.fromkeys((Victim.AGENT, Victim.WORKER, Victim.ENGINE, Victim.JUDGE), 1), seed=_SEED)


@pytest.mark.soak
def test_a_run_survives_twenty_deaths_and_its_tokens_add_up():
    check_run({Victim.AGENT: 8, Victim.WORKER: 4, Victim.ENGINE: 4, Victim.JUDGE: 4}, seed=_SEED)


def check_run(numbers: dict[Victim, int], *, seed: int) -> None:
    """Play a run with so many kills of each kind, and look at what it leaves."""
    kills = kills_of(numbers, seed=seed)
    num_calls = sum(kill.num_calls for kill in kills)
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    try:
        outcome = play(
            folder,
            kills,
            config="configs/demo.yaml",
            overrides=[
                *_OVERRIDES,
                f"agent_loop.agent.command=[python,-m,{AGENT_MODULE},{calls_file(folder)}]",
            ],
            num_steps=2 + num_calls // _MAX_CALLS,
            agent_tools=[TOOL],
        )
        assert outcome.faults == [], outcome.output[-3000:]
        assert Counter(kill.victim for kill in outcome.killed) == numbers
        assert unnoticed(outcome) == []
    finally:
        shutil.rmtree(folder)


def kills_of(numbers: dict[Victim, int], *, seed: int) -> list[CallKill]:
    draws = random.Random(seed)
    victims = [victim for victim, number in numbers.items() for _ in range(number)]
    draws.shuffle(victims)
    return [
        CallKill(victim=victim, event=draws.choice(list(CallEvent)), num_calls=draws.randint(1, _MAX_CALLS))
        for victim in victims
    ]


def unnoticed(outcome: Outcome) -> list[str]:
    """Return the prompts whose trajectories name fewer such failures than agents of theirs were killed."""
    noticed = Counter(
        trajectory.prompt_id
        for file in TrajectoryStore(outcome.run_dir).files()
        for trajectory in read_trajectories(file)
        for failure in trajectory.failures
        if failure.failure_class in _DEATHS or "was killed by SIGKILL" in failure.message
    )
    return list((Counter(outcome.prompts_of_killed_agents) - noticed).elements())
