"""Everything that a first session on a GPU has to answer, in ten minutes: kernels, an update, the GPU tests, the whole loop.

    python -m benchmarks.gpu [--out runs/gpu] [--steps kernels update ...] [--tiny]

Needs torch and transformers; the loops also need what `prepare.sh` packs into `.gpu/`, or an installed agentrl. Each step has
its own time limit and its own log in the folder `--out`; one that fails does not stop the others. `--tiny` runs the same steps
in small form, also on a CPU. Exit status 1: a step failed; 2: the folder is
not empty.
"""

import argparse
import contextlib
import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PACKED = ROOT / ".gpu"
_SHOWN_LINES, _SHOWN_WIDTH = 4, 220
_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command. Example: `Step(name="kernels", limit_s=60, command=["python", "-m", "benchmarks.gpu.kernels"])`."""

    name: str
    limit_s: float
    command: Sequence[str]
    appended: Sequence[Path] = field(default_factory=tuple)
    """Files and folders that are added to the log afterwards."""


def steps(out: Path, *, is_tiny: bool) -> list[Step]:
    """Return all steps in their order; the most informative come first."""
    module = [sys.executable, "-m"]
    tiny = ["--tiny"] if is_tiny else []
    rounds = ["--tiny", "--rounds", "1", "--trajectories", "2"] if is_tiny else ["--trajectories", "8", "--rounds", "2"]
    colocated = ["model.dtype=bfloat16", "cluster.colocated=true"]
    colocated += [] if is_tiny else ["cluster.weight_transport=cuda_ipc"]
    machine = "nvidia-smi; df -h /dev/shm /tmp; hostname; getent hosts $(hostname); nproc; free -g"
    return [
        Step(name="machine", limit_s=20, command=["sh", "-c", machine]),
        Step(name="kernels", limit_s=60, command=[*module, "benchmarks.gpu.kernels", *tiny]),
        Step(name="update", limit_s=170, command=[*module, "benchmarks.gpu.update", "--size", "1.5b", *rounds]),
        Step(name="tests", limit_s=110, command=["make", "test-gpu", f"PYTHON={sys.executable}"]),
        _loop(out, "loop", is_tiny=is_tiny),
        _loop(out, "loop-colocated", *colocated, is_tiny=is_tiny),
        Step(
            name="variants",
            limit_s=180,
            command=[*module, "benchmarks.gpu.variants", *tiny, "--profile", str(out / "profile.txt")],
        ),
        Step(name="update-0.5b", limit_s=70, command=[*module, "benchmarks.gpu.update", "--size", "0.5b", *rounds]),
    ]


def _loop(out: Path, name: str, *overrides: str, is_tiny: bool) -> Step:
    """Return a short form of the demo, on the GPU where there is one."""
    folder = out / f"{name}-run"
    words = ["run.num_steps=3", "validation.every_steps=3", "checkpoint.every_steps=3"]
    if is_tiny:
        words = [
            "run.num_steps=1",
            "checkpoint.every_steps=1",
            "validation.every_steps=0",
            "rollout.prompts_per_step=2",
        ]
    words.append(f"run.dir={folder}")
    command = [sys.executable, "-m", "agentrl.runners.rstar2", "configs/demo.yaml", *words, *overrides]
    return Step(
        name=name,
        limit_s=300 if is_tiny else 90,
        command=command,
        appended=(folder / "metrics.jsonl", folder / "ray_logs"),
    )


def loop_environment(environment: dict[str, str]) -> dict[str, str] | None:
    """Return the environment in which Ray and the other packages of a run are found; None where they are not here."""
    if importlib.util.find_spec("ray") is not None:
        return environment
    site = _unpacked()
    return None if site is None else environment | {"PYTHONPATH": f"{site}:{ROOT}"}


def _unpacked() -> Path | None:
    """Return the folder with what `prepare.sh` has packed, installed on the first call; None where nothing is packed."""
    site, wheels, ray = _PACKED / "site", sorted((_PACKED / "wheels").glob("*.whl")), _PACKED / "ray.tar.xz"
    if site.is_dir():
        return site
    if not (wheels and ray.is_file()):
        return None
    part = _PACKED / "site.part"
    with tarfile.open(ray) as archive:
        archive.extractall(part, filter="tar")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--upgrade"]
    subprocess.run([*pip, "--target", str(part), *map(str, wheels)], check=True)
    part.rename(site)
    return site


def run_step(step: Step, out: Path, environment: dict[str, str]) -> int:
    """Run a step with its limit; returns its exit status, -9 or -15 where the limit ended it."""
    log = out / f"{step.name}.txt"
    with log.open("a") as file:
        file.write(f"$ {shlex.join(step.command)}\n")
        file.flush()
        process = subprocess.Popen(
            step.command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            status = _end(process)
        for path in step.appended:
            for part in sorted(path.rglob("*.err")) if path.is_dir() else [path] * path.is_file():
                file.write(f"\n== {part}\n{part.read_text(errors='replace')[-20_000:]}")
    return status


def _end(process: subprocess.Popen[bytes]) -> int:
    """End a process and its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_GRACE_S)
    return process.wait()


def run(chosen: Sequence[Step], out: Path) -> int:
    """Run the steps and print a summary of each, which also goes to `summary.txt`; returns how many failed."""
    out.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(ROOT),
    }
    num_failed, began = 0, time.monotonic()
    with (out / "summary.txt").open("a") as summary:
        for step in chosen:
            started = time.monotonic()
            own = loop_environment(environment) if step.name.startswith("loop") else environment
            if own is None:
                line = f"{step.name}: skipped: Ray is not installed, and `benchmarks/gpu/prepare.sh` has packed nothing"
            else:
                status = run_step(step, out, own)
                num_failed += status != 0
                line = f"{step.name}: exit status {status} in {time.monotonic() - started:.0f} s"
            line = f"{time.monotonic() - began:4.0f} s  {line}"
            print(line, file=summary, flush=True)
            print(line, flush=True)
            log = out / f"{step.name}.txt"
            for shown in log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:] if log.is_file() else ():
                print(f"        {shown[:_SHOWN_WIDTH]}", flush=True)
    return num_failed


def main(words: Sequence[str] | None = None) -> int:
    """Run the steps that the command line names; all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"), help="folder for logs")
    parser.add_argument("--steps", nargs="+", help="names of steps; all by default")
    parser.add_argument("--tiny", action="store_true", help="small sizes, also without a GPU")
    options = parser.parse_args(words)
    every = steps(options.out.resolve(), is_tiny=options.tiny)
    names = [step.name for step in every]
    if unknown := set(options.steps or ()) - set(names):
        parser.error(f"unknown steps: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    if options.out.is_dir() and any(options.out.iterdir()):
        # A loop whose run is finished there would pass without computing anything.
        parser.error(f"--out: {options.out} holds an earlier session; move it away, or name another folder")
    chosen = [step for step in every if step.name in (options.steps or names)]
    return 1 if run(chosen, options.out.resolve()) else 0


if __name__ == "__main__":
    sys.exit(main())
