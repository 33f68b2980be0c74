"""Agent, engine and agent-loop worker killed at random moments of a run whose episodes a program plays.

Every step ends, no token is trained twice, nothing that failed is rewarded, and no agent is left.
"""

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from agentrl.agent_loop.gateway.exactness import DropReason
from agentrl.observability.metrics_file import read_metrics
from benchmarks.rollout.kills import AGENT_MODULE, Kill, Victim, play
from tests.runners.run_process import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(1500)]

_OVERRIDES = [
    *SMALL,
    "tool_config_path=null",
    f"agent_loop.agent.command=[python,-m,{AGENT_MODULE}]",
    "rollout.max_concurrent_trajectories=16",
    "rollout.max_turns=3",
    "rollout.max_response_tokens=512",
    f"reward.function={AGENT_MODULE}.has_even_length",
    "reward.score_unfinished=score",
]


def test_a_run_survives_deaths_of_agents_engine_and_worker_and_its_tokens_add_up():
    draws = random.Random(11)
    victims = [Victim.AGENT, Victim.ENGINE, Victim.AGENT, Victim.WORKER]
    kills = [Kill(victim=victim, step=number, moment=draws.random()) for number, victim in enumerate(victims, start=2)]
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    try:
        outcome = play(folder, kills, config="configs/demo.yaml", overrides=_OVERRIDES, num_steps=len(kills) + 2)
        assert outcome.faults == [], outcome.output[-3000:]
        assert Counter(kill.victim for kill in outcome.killed) == Counter(victims)
        for row in read_metrics(outcome.run_dir / "metrics.jsonl"):
            left_out = sum(row.get(f"agent/tokens_{reason}") or 0 for reason in DropReason)
            assert (row.get("agent/tokens_sampled") or 0) == (row.get("agent/tokens_trained") or 0) + left_out
    finally:
        shutil.rmtree(folder)
