"""Survived failures in the result of a run, those after its last row included."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from agentrl.checkpoints.contents import RunState
from agentrl.config.load import load_run_config
from agentrl.observability.metrics_file import MetricsFile
from agentrl.run.plan import Plan, Run, prepare
from agentrl.run.training_step import finish


class Ending:
    """Whatever `finish` asks for; two engines have died since the last row."""

    async def settle(self) -> None: ...

    def start_phase(self, _: str) -> None: ...

    async def export(self, folder: str) -> None:
        os.mkdir(folder)

    def conclusion(self) -> None: ...

    def take_num_deaths(self) -> int:
        return 2


async def finished(plan: Plan, state: RunState | None = None) -> None:
    end: Any = Ending()
    parts = dict.fromkeys(("checkpoints", "progress", "learner", "engines", "advisor"), end)
    run = SimpleNamespace(plan=plan, config=plan.config, **parts)
    await finish(cast(Run, run), state or RunState())


async def test_a_run_counts_on_from_the_command_before_and_tells_what_died_after_its_last_row(tmp_path: Path):
    loaded = load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'run'}"])
    first = prepare(loaded)
    row = {"rollout/reward_mean": 0.5, "actor/restarts": 1.0, "cluster/nodes_lost": 2.0, "rollout/engine_deaths": 3.0}
    MetricsFile(first.directory.metrics).append(1, row)
    first.directory.close()
    plan = prepare(loaded)
    plan.history.num_restarts += 1
    plan.history.num_extra_role_deaths += 1
    await finished(plan)
    assert plan.directory.result()["survived"] == {
        "actor/restarts": 2,
        "rollout/engine_deaths": 5,
        "cluster/extra_role_deaths": 1,
        "cluster/nodes_lost": 2,
    }
    line = "survived:       2 restarts of the models, 5 deaths of engines, 1 death of an extra role, 2 nodes lost"
    assert plan.directory.describe_result().endswith(line)
