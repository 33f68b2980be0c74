"""The main job end to end: the real command, judge, Ray, engine, actor and policy, only fewer prompts."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.observability.metrics_file import MetricsRow
from agentrl.runners import rstar2
from agentrl.runners.export import export
from agentrl.trajectories.store import read_prompts, read_trajectories
from deploy import make_grafana
from tests.processes import children_since
from tests.runners.run_process import SMALL, finish_run, metrics

pytestmark = [pytest.mark.ray, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of three steps with validation before the first and after the last, on two ranks, engines and workers."""
    run_dir = tmp_path_factory.mktemp("run") / "small"
    output = finish_run(
        run_dir,
        *SMALL,
        "run.num_steps=3",
        "validation.every_steps=3",
        "rollout.num_workers=2",
        "rollout.num_engines=2",
        "actor.num_workers=2",
        "rollout.max_concurrent_trajectories=32",
        "cluster.colocated=true",
        "observability.prometheus_port=0",
    )
    return run_dir, output


@pytest.mark.slow
def test_there_is_one_line_of_metrics_per_step_from_step_0_on(finished: tuple[Path, str]):
    rows = metrics(finished[0])
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert "validation/accuracy" in rows[0]
    assert not any(key.startswith(("rollout/", "actor/")) for key in rows[0])
    assert {"actor/grad_norm", "rollout/reward_mean", "judge/submissions", "time/step_s"} <= set(rows[1])
    assert "validation/accuracy" not in rows[1]
    assert "validation/accuracy" in rows[3]


def test_programs_of_the_policy_really_reached_the_judge(finished: tuple[Path, str]):
    for row in metrics(finished[0])[1:]:
        assert number(row, "judge/submissions") > 0
        assert number(row, "rollout/tool_success_rate") > 0.5


def test_the_actor_recomputes_what_the_engine_sampled(finished: tuple[Path, str]):
    """Rollout log-probabilities of the engine against the FSDP actor's own, after weight syncs too."""
    for row in metrics(finished[0])[1:]:
        assert number(row, "actor/rollout_logprob_diff_mean") < 1e-4
        assert number(row, "actor/rollout_ratio_max") < 1.01


def test_the_most_memory_of_actor_and_engines_is_reported_for_each_phase(finished: tuple[Path, str]):
    """The engines slept during the updates; that they were right afterwards is in the log-probabilities above."""
    for row in metrics(finished[0])[1:]:
        for who in ("actor", "engine"):
            for phase in ("rollout", "update", "weight_sync"):
                assert number(row, f"memory/{who}_{phase}_bytes_max") > 2**20


def test_the_panels_for_grafana_show_metrics_that_a_run_has(finished: tuple[Path, str]):
    shown = {metric for panel in make_grafana.PANELS for metric in panel.metrics}
    assert shown - set(metrics(finished[0])[-1]) == set()


def test_a_run_says_where_prometheus_finds_its_metrics(finished: tuple[Path, str]):
    assert re.search(r"metrics for Prometheus: http://127\.0\.0\.1:\d+/metrics", finished[1])


def test_every_trajectory_is_recorded_with_its_prompt(finished: tuple[Path, str]):
    for step in (1, 2, 3):
        file = finished[0] / "trajectories" / f"step_{step:06d}.atr"
        trajectories = list(read_trajectories(file))
        assert len(trajectories) % 32 == 0
        assert {t.prompt_id for t in trajectories} == set(read_prompts(file))
        assert {version for t in trajectories for _, version in t.version_spans} == {step - 1}


def test_the_output_ends_with_the_curve_and_the_paths(finished: tuple[Path, str]):
    run_dir, output = finished
    assert "validation accuracy" in output
    assert str(run_dir / "reward_curve.png") in output
    assert (run_dir / "reward_curve.png").read_bytes().startswith(b"\x89PNG")
    assert "finished after 3 of 3 steps" in (run_dir / "report.html").read_text()
    assert (run_dir / "config.yaml").is_file()
    assert list((run_dir / "tensorboard").iterdir())


def test_the_trained_policy_loads_as_a_hugging_face_model(finished: tuple[Path, str]):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = str(finished[0] / "policy")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.chat_template
    assert model.config.vocab_size >= len(tokenizer)


def test_the_last_checkpoint_is_exported_as_the_trained_policy(finished: tuple[Path, str], tmp_path: Path):
    """Export by the config in the run's folder, which names the folder."""
    config = load_run_config(str(finished[0] / "config.yaml"), purpose=Purpose.EXPORT).config
    export(config, to=str(tmp_path / "out"))
    for file in (finished[0] / "policy").iterdir():
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes(), file.name


def test_a_finished_run_only_prints_its_result_again(finished: tuple[Path, str]):
    run_dir, output = finished
    before = (run_dir / "metrics.jsonl").read_bytes()
    second = finish_run(
        run_dir,
        *SMALL,
        "run.num_steps=3",
        "validation.every_steps=3",
        "rollout.num_workers=2",
        "rollout.num_engines=2",
        "actor.num_workers=2",
        "rollout.max_concurrent_trajectories=32",
        "cluster.colocated=true",
        timeout_s=250,
    )
    assert second.strip().splitlines()[-1] == output.strip().splitlines()[-1]
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def number(row: MetricsRow, key: str) -> float:
    value = row[key]
    assert value is not None
    return value


def refused(*arguments: str) -> str:
    command = [sys.executable, "-m", "agentrl.runners.rstar2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip()


TWO_NODES = "cluster={pools: {a: {processes_per_node: [1, 1]}}, roles: {actor_rollout: a}}"

Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Called:
    """Call the command in this process, which spares the seconds of its imports; gives exit status, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rstar2", *arguments])
        monkeypatch.setattr(sys, "path", [*sys.path])
        children = psutil.Process().children()
        capfd.readouterr()
        status = rstar2.main()
        assert children_since(children) == []
        printed = capfd.readouterr()
        return status, printed.out, printed.err

    return call


def refusal(called: Called, *arguments: str) -> str:
    status, _, errors = called(*arguments)
    assert status == 2, errors
    assert "Traceback" not in errors
    return errors.strip()


def test_a_changed_config_is_refused_and_names_the_keys(called: Called, finished: tuple[Path, str]):
    message = refusal(
        called, "configs/demo.yaml", f"run.dir={finished[0]}", "run.num_steps=3", "actor.learning_rate=0.5"
    )
    assert "`actor.learning_rate`" in message
    assert "`run.num_steps`" not in message


def test_a_folder_with_something_else_in_it_is_refused(called: Called, tmp_path: Path):
    (tmp_path / "thesis.tex").write_text("precious")
    assert "holds no run" in refusal(called, "configs/demo.yaml", f"run.dir={tmp_path}")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rollout.temprature=1", "rollout.temprature"),
        ("data.train_files=[nowhere.jsonl]", "nowhere.jsonl"),
        ("tool_config_path=nowhere.yaml", "nowhere.yaml"),
        ("model.path=/nowhere", "/nowhere"),
        ("reward.class_name=nowhere.Reward", "nowhere.Reward"),
        ("checkpoint.dir=nowhere://runs", "checkpoint.dir"),
        (TWO_NODES, "cluster.address"),
    ],
)
def test_bad_input_ends_in_one_line_before_anything_starts(called: Called, tmp_path: Path, override: str, named: str):
    message = refusal(called, "configs/demo.yaml", f"run.dir={tmp_path / 'run'}", override)
    assert named in message
    assert message.startswith("error: ")
    assert len(message.splitlines()) == 1


def test_bad_input_ends_the_real_command_the_same_way(called: Called, tmp_path: Path):
    arguments = ("configs/demo.yaml", f"run.dir={tmp_path / 'run'}", "rollout.temprature=1")
    assert refused(*arguments) == refusal(called, *arguments)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("checkpoint.dir=nowhere://runs", "checkpoint.dir: nowhere://runs cannot be reached"),
        (TWO_NODES, "`cluster.pools.a`"),
    ],
)
def test_a_check_refuses_what_the_run_would(called: Called, tmp_path: Path, override: str, named: str):
    assert named in refusal(called, "configs/demo.yaml", "--check", f"run.dir={tmp_path / 'run'}", override)


def check(*arguments: str) -> str:
    command = [sys.executable, "-m", "agentrl.runners.rstar2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.slow
def test_the_full_check_builds_the_tools_against_a_judge_and_leaves_no_run(tmp_path: Path):
    output = check("configs/demo.yaml", "--check", f"run.dir={tmp_path / 'run'}")
    assert "python_code_with_standard_io" in output
    assert "concurrency budget" in output
    assert "memory (estimate), this machine: 0.0" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("vllm_is_installed")
def test_the_recipe_for_eight_gpus_passes_the_static_check(called: Called):
    status, output, _ = called("configs/rstar2_qwen3_14b.yaml", "--check=static")
    assert status == 0
    assert "ok (static check)" in output


def test_the_resolved_config_holds_every_key(finished: tuple[Path, str]):
    text = (finished[0] / "config.yaml").read_text()
    assert "max_tool_response_tokens: 96" in text
    assert json.loads((finished[0] / "result.json").read_text())["num_steps"] == 3
