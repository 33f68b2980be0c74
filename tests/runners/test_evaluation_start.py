"""An evaluation before it starts, and its table; without Ray, judge or engine."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError, RolloutError
from agentrl.evaluation.figures import ALL_PROMPTS, Figures
from agentrl.observability.estimates import estimate
from agentrl.run.plan import EvaluationPlan, prepare_evaluation
from agentrl.runners.evaluate import require_measured, result_table
from agentrl.types import Failure, FailureClass
from tests.summaries import short_summary


def refused(runner: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"agentrl.runners.{runner}", "configs/demo.yaml", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done.stderr


POLICY = SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"
SERVERS = ["rollout.engine=openai", "rollout.openai.base_urls=['http://127.0.0.1:9/v1']"]


def test_training_on_servers_of_others_is_refused_before_anything_starts(tmp_path: Path):
    message = refused("rstar2", f"run.dir={tmp_path / 'run'}", *SERVERS)
    assert "`rollout.engine` is `openai`" in message
    assert "agentrl.runners.evaluate" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "named"),
    [("data.validation_files=[]", "data.validation_files"), ("model.path=/nowhere", "/nowhere")],
)
def test_an_evaluation_that_cannot_run_ends_in_one_line_before_anything_starts(
    tmp_path: Path, override: str, named: str
):
    assert named in refused("evaluate", f"run.dir={tmp_path / 'run'}", *SERVERS, override)


def test_an_evaluation_that_this_machine_cannot_hold_is_refused_unless_it_is_only_shown_again(tmp_path: Path):
    def prepared(num_gpus: int) -> EvaluationPlan:
        pools = f"cluster.pools={{a: {{num_processes: 1}}, b: {{num_processes: 1, num_gpus: {num_gpus}}}}}"
        words = [f"run.dir={tmp_path}", pools, "cluster.roles={actor: a, rollout: b}"]
        return prepare_evaluation(load_run_config("configs/demo.yaml", words, purpose=Purpose.EVALUATION))

    with pytest.raises(ConfigError, match=r"`cluster\.pools\.b`: 1 x \(CPU 1, GPU 1000\)"):
        prepared(num_gpus=1000)
    prepared(num_gpus=0).directory.finish({})
    assert prepared(num_gpus=1000).directory.finished


def test_positions_that_would_end_the_embedded_engine_are_refused_and_stages_do_not_count(tmp_path: Path):
    def prepared(*words: str) -> EvaluationPlan:
        words = (f"model.path={tmp_path}", f"run.dir={tmp_path / 'run'}", *words)
        return prepare_evaluation(load_run_config("configs/demo.yaml", words, purpose=Purpose.EVALUATION))

    shutil.copytree(POLICY, tmp_path, dirs_exist_ok=True)
    scaled = {"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 500}
    (tmp_path / "config.json").write_text(json.dumps(json.loads((POLICY / "config.json").read_text()) | scaled))
    with pytest.raises(ConfigError, match=r"model\.path: .* has 500 positions .* may have 512 tokens"):
        prepared()
    prepared("rollout.max_response_tokens=244", "stages=[{num_steps: 60, max_response_tokens: 1000}]")


def test_what_could_not_be_measured_is_a_dash_in_the_table():
    shares = {f"validation/{name}_share": None for name in ("truncated", "max_turns", "timeout")}
    single = Figures(
        name=ALL_PROMPTS,
        num_prompts=1,
        num_samples=1,
        accuracy=estimate([[0.25]], is_share=True),
        pass_at={},
        majority_at={},
    )
    table = result_table([single], {"validation/tool_success_rate": None} | shares)
    assert list(table.columns[1].cells) == ["0.250", *"--------"]
    assert next(iter(table.columns[2].cells)) == "-"


def test_an_evaluation_that_measured_nothing_fails_and_says_why():
    lost = Failure(failure_class=FailureClass.TOOL, message="tool `search`: ConnectionRefusedError: no")
    summaries = [short_summary(f"p{number}", reward=None, failures=(lost,)) for number in range(3)]
    with pytest.raises(RolloutError, match=r"none of 3 trajectories was scored.*`tool`: 3 tries failed.*Connection"):
        require_measured(summaries)
    require_measured([*summaries, short_summary(reward=0.0)])
