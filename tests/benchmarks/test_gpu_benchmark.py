"""The benchmark of GPUs runs, small, wherever the tests run; and the tests of GPUs need no more than it does."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import kernels, variants
from benchmarks.gpu.__main__ import Step, run, steps
from benchmarks.gpu.__main__ import main as session
from benchmarks.gpu.kernels import PROBES
from benchmarks.gpu.update import main
from benchmarks.gpu.variants import VARIANTS

ROOT = Path(__file__).resolve().parents[2]
ABSENT = ("datasets", "fastapi", "liger_kernel", "msgspec", "omegaconf", "orjson", "ray", "trl", "uvicorn", "vllm")
"""Not in a plain CUDA image of PyTorch."""


def assert_whole(printed: str, *, rel: float) -> None:
    """Every section has printed its line, and what was compared is the same."""
    assert re.search(r"^update: \d+ tokens in .* MFU \d+\.\d% of", printed, re.MULTILINE)
    norms = re.search(r"norms of the gradient (\S+) and (\S+)$", printed, re.MULTILINE)
    assert norms is not None
    assert float(norms[1]) == pytest.approx(float(norms[2]), rel=rel)
    assert re.search(r"^vocabulary of \d+, ", printed, re.MULTILINE)
    assert re.search(r"^weight sync by .*; x \d+\.\d+ of a copy on the device", printed, re.MULTILINE)
    assert re.search(r"^asleep: .*samples as before$", printed, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.timeout(600)  # two processes that load everything anew, on machines that do other work as well
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU has a test of its own")
def test_the_benchmark_of_gpus_runs_small_on_a_cpu_with_the_packages_of_a_plain_image():
    code = (
        f"import sys\nsys.modules.update(dict.fromkeys({ABSENT}))\n"
        "from benchmarks.gpu import kernels, update, variants\n"
        "assert kernels.main(['--tiny']) == 0\nassert variants.main(['--tiny']) == 0\n"
        "update.main(['--tiny', '--rounds', '1', '--trajectories', '2'])"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    figures = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    assert [figure["probe"] for figure in figures if "probe" in figure] == list(PROBES)
    assert [figure["variant"] for figure in figures if "variant" in figure] == [variant.name for variant in VARIANTS]
    assert [figure for figure in figures if "error" in figure] == []
    assert "CUDA IPC needs a GPU and is untried here" in ran.stdout
    assert_whole(ran.stdout, rel=1e-4)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
@pytest.mark.skipif(torch.cuda.is_available(), reason="`make gpu` runs it")
def test_the_whole_loop_of_a_gpu_session_runs_small_on_a_cpu(tmp_path: Path):
    colocated = next(step for step in steps(tmp_path, is_tiny=True) if step.name == "loop-colocated")
    assert run([colocated], tmp_path) == 0, (tmp_path / "loop-colocated.txt").read_text()
    assert "actor/rollout_logprob_diff_mean" in (tmp_path / "loop-colocated.txt").read_text()


def test_a_step_that_hangs_or_fails_does_not_stop_a_gpu_session(tmp_path: Path):
    (tmp_path / "extra.jsonl").write_text("of the step")
    chosen = [
        Step(name="hangs", limit_s=0.2, command=["sh", "-c", "echo before; sleep 60"]),
        Step(name="fails", limit_s=20, command=["sh", "-c", "exit 3"]),
        Step(name="works", limit_s=20, command=["echo", "whole"], appended=(tmp_path / "extra.jsonl",)),
    ]
    assert run(chosen, tmp_path) == 2
    summary = (tmp_path / "summary.txt").read_text().splitlines()
    assert [re.sub(r".* s  | in .*", "", line) for line in summary] == [
        "hangs: exit status -15",
        "fails: exit status 3",
        "works: exit status 0",
    ]
    assert "before" in (tmp_path / "hangs.txt").read_text()
    assert (tmp_path / "works.txt").read_text().endswith("of the step")


def test_a_second_gpu_session_does_not_take_over_the_folder_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "loop-run").mkdir()
    with pytest.raises(SystemExit) as raised:
        session(["--out", str(tmp_path), "--steps", "machine"])
    assert raised.value.code == 2
    assert "holds an earlier session; move it away" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["loop-run"]


def test_a_probe_or_variant_that_fails_fails_its_step_and_the_others_still_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def works(*_: Any, **__: Any) -> dict[str, float]:
        return {"ms": 1.0}

    def fails(*_: Any, **__: Any) -> dict[str, float]:
        raise RuntimeError("no kernel")

    monkeypatch.setattr(kernels, "PROBES", {"first": fails, "second": works})
    monkeypatch.setattr(variants, "measure", lambda variant, *_, **__: (works if variant.row_by_row else fails)())
    assert (kernels.main(["--tiny"]), variants.main(["--tiny"])) == (1, 1)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert ["error" in line for line in printed[:4]] == [True, False, True, False]
    monkeypatch.setattr(kernels, "PROBES", {"second": works})
    monkeypatch.setattr(variants, "measure", works)
    assert (kernels.main(["--tiny"]), variants.main(["--tiny"])) == (0, 0)


def test_the_steps_of_a_gpu_session_fit_its_time():
    """Each step's own limit is generous; what is expected in all, by benchmarks/gpu/README.md, is below ten minutes."""
    table = (ROOT / "benchmarks" / "gpu" / "README.md").read_text()
    expected_s = {name: int(s) for name, s in re.findall(r"^\| `([\w.-]+)` \|.*?\| (\d+) s \|", table, re.MULTILINE)}
    every = steps(Path("runs/gpu"), is_tiny=False)
    assert list(expected_s) == [step.name for step in every]
    assert sum(expected_s.values()) < 600
    assert all(expected_s[step.name] < step.limit_s for step in every)


@pytest.mark.slow
def test_the_tests_of_gpus_are_found_with_the_packages_of_a_plain_image():
    """Run the command of `make test-gpu`, which must not stumble over a file that needs more."""
    makefile = (ROOT / "Makefile").read_text().splitlines()
    [command] = [line.strip() for line in makefile if "-m gpu" in line]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT})); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    )
    found = command.replace("$(PYTHON) -m pytest", '"$PYTHON" -c "$CODE" --collect-only -q').replace("$$", "$")
    environment = os.environ | {
        "PYTHON": sys.executable,
        "CODE": code,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    ran = subprocess.run(["sh", "-c", found], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "test_a_bfloat16_update_is_close_to_float32" in ran.stdout
    assert "test_cuda_ipc_transfers_every_version_to_another_process_on_the_same_gpu" in ran.stdout


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_benchmark_of_gpus_runs_small_on_a_gpu(capsys: pytest.CaptureFixture[str]):
    main(["--tiny", "--rounds", "1", "--trajectories", "2"])
    printed = capsys.readouterr().out
    assert "bfloat16" in printed
    assert "weight sync by CUDA IPC" in printed
    assert_whole(printed, rel=0.05)
