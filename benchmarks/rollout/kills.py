"""Runs in which one process is killed at a random moment, whatever it does there, and what became of them.

    python -m benchmarks.rollout.kills [--runs 20] [--seed 0] [--victims engine worker judge] [--json FILE]

Each is a short run of the PPO demo: real judge, Ray, engines, and actor, critic and reward model in processes of their own.
Where the worker is killed that holds the judge of its node, it is one with `judge.placement=per_node`.
One process is killed with `kill -9` at a random moment of the start, of a step or of the end. The run must finish by itself, as
accurate as one in which nobody died, up to chance; its directory must show that every step ended, that every prompt is
accounted for once, and that no trajectory carries tokens of two episodes (`accounting.py`); and nothing of it may be left.
"""

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import psutil

from agentrl.observability.metrics_file import read_metrics
from benchmarks.judge import report
from benchmarks.rollout.accounting import faults_of_run, num_infra_errors
from benchmarks.training.topologies import STANDARD_ERRORS, Learnt, learnt_in, places

AGENT_MODULE = "benchmarks.gateway.program_agent"
_CONFIG = "configs/demo_ppo.yaml"
_NUM_STEPS = 10
_START_S = 15.0
"""Approximate time of a start."""
_END_S = 2.0
"""Approximate time of the end; some runs are shorter."""
_STEP_S = 3.0
"""Assumed time of a step before the first measurement."""
_RUN_TIMEOUT_S = 1500.0
_END_TIMEOUT_S = 30.0
_POLL_S = 0.05


class Victim(StrEnum):
    """Kind of process that is killed."""

    ENGINE = "engine"
    WORKER = "worker"
    JUDGE = "judge"
    NODE_JUDGE = "node judge"
    """Worker that holds the judge of its node."""
    ACTOR = "actor"
    CRITIC = "critic"
    REWARD_MODEL = "reward model"
    AGENT = "agent"
    """Program that plays an episode; only in runs with one."""

    @property
    def overrides(self) -> list[str]:
        """Config overrides by which a run has such a process."""
        return ["judge.placement=per_node"] if self is Victim.NODE_JUDGE else []

    def is_in(self, words: Sequence[str]) -> bool:
        """Return whether a process with this command line is one."""
        name, *roles = words[0].partition(".")[0].split("_")
        plays = roles if name == "ray::ModelWorker" else []
        match self:
            case Victim.ENGINE:
                return name == "ray::EngineWorker"
            case Victim.WORKER:
                return name == "ray::AgentLoopWorker"
            case Victim.JUDGE:
                return "code_judge_server" in words
            case Victim.NODE_JUDGE:
                return name == "ray::NodeJudge"
            case Victim.ACTOR:
                return "actor" in plays
            case Victim.CRITIC:
                return "critic" in plays
            case Victim.REWARD_MODEL:
                return "reward" in plays
            case Victim.AGENT:
                return AGENT_MODULE in words


_OF_DEMO = tuple(victim for victim in Victim if victim is not Victim.AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill: of what, in which step, and after which share of the time that a step takes.

    Step 0 is the start; the one after the last is the end, in which the last checkpoint and the policy are written.
    """

    victim: Victim
    step: int
    moment: float


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Outcome of a run."""

    run_dir: Path
    killed: list[Kill] = field(default_factory=list)
    seconds: float = 0.0
    output: str = ""
    faults: list[str] = field(default_factory=list)
    learnt: Learnt | None = None
    """Absent where it did not finish, or did not measure it."""


def play(folder: Path, kills: Sequence[Kill], *, config: str, overrides: Sequence[str], num_steps: int) -> Outcome:
    """Run a config, kill what `kills` say, in the order of their steps, and look at what is there afterwards.

    Args:
        folder: for the run's directory, the temporary files of all its processes, and nothing else; with a short name, because
            sockets are made in it.
        kills: one for a step at most.
        config: of a demo.
        overrides: what else is to be changed of it.
        num_steps: of the run.
    """
    overrides = [*overrides, *(needed for kill in kills for needed in kill.victim.overrides)]
    overrides += [f"run.num_steps={num_steps}", "checkpoint.every_steps=1", "checkpoint.keep_last=1000"]
    outcome, started_at = Outcome(run_dir=folder / "run"), time.monotonic()
    temporary = folder / "t"
    temporary.mkdir()
    command = [sys.executable, "-m", "agentrl.runners.rstar2", config, f"run.dir={outcome.run_dir}", *overrides]
    # Torch keeps its cache among the temporary files, for whoever comes next: it is nothing that a run has left.
    places_of_files = {"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch_cache")}
    with (folder / "output").open("w+") as output:
        runner = subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | places_of_files)
        with _ended(runner):
            family = _Family(runner.pid)
            for kill in kills:
                phase_s = {0: _START_S, num_steps + 1: _END_S}.get(kill.step)
                if _kill(kill, phase_s, runner, family, outcome.run_dir):
                    outcome.killed.append(kill)
            code = _wait(runner, family, give_up_at=started_at + _RUN_TIMEOUT_S)
        output.seek(0)
        outcome.output = output.read()
    outcome.seconds = time.monotonic() - started_at
    outcome.faults += [
        f"{kill} found nothing to kill" for kill in kills if kill not in outcome.killed and kill.step <= num_steps
    ]
    if code != 0:
        outcome.faults.append(f"exit status {code}: {outcome.output[-500:]}")
    else:
        outcome.learnt = learnt_in(outcome.run_dir, seconds=outcome.seconds)
    outcome.faults += [f"left: {words}" for words in family.left()]
    outcome.faults += [f"left: {path}" for path in temporary.iterdir()]
    outcome.faults += faults_of_run(outcome.run_dir, config=config, overrides=overrides)
    return outcome


class _Family:
    """Every process that a runner has started so far."""

    def __init__(self, pid: int) -> None:
        self._runner = psutil.Process(pid)
        self._seen: set[psutil.Process] = set()

    def look(self) -> list[psutil.Process]:
        """Return those that are there now."""
        try:
            children = self._runner.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(children)
        return children

    def find(self, victim: Victim) -> list[psutil.Process]:
        """Return those that are such a victim."""
        return [process for process in self.look() if (words := _words(process)) and victim.is_in(words)]

    def left(self) -> list[str]:
        """Return, as text, those that have not ended a while after the runner has."""
        give_up_at = time.monotonic() + _END_TIMEOUT_S
        while (
            left := [words for process in self._seen if (words := _words(process))]
        ) and time.monotonic() < give_up_at:
            time.sleep(_POLL_S)
        return [" ".join(words)[:200] for words in left]


def _words(process: psutil.Process) -> list[str]:
    """Return the command line of a process, empty if it has ended."""
    try:
        return process.cmdline() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.NoSuchProcess:
        return []


def _kill(kill: Kill, phase_s: float | None, runner: subprocess.Popen[bytes], family: _Family, run_dir: Path) -> bool:
    """Wait for the moment in a phase of so long, else in a step, and kill; return whether there was one in time."""
    while kill.step > 0 and _last_step(run_dir) < kill.step - 1:
        if runner.poll() is not None:
            return False
        time.sleep(_POLL_S)
    time.sleep(kill.moment * (_step_time_s(run_dir) if phase_s is None else phase_s))
    while not (victims := family.find(kill.victim)):  # it was killed before, and is being started
        if runner.poll() is not None:
            return False
        time.sleep(_POLL_S)
    with contextlib.suppress(psutil.NoSuchProcess):
        victims[0].kill()
    return runner.poll() is None


def _wait(runner: subprocess.Popen[bytes], family: _Family, *, give_up_at: float) -> int | None:
    while (code := runner.poll()) is None and time.monotonic() < give_up_at:
        family.look()
        time.sleep(10 * _POLL_S)
    return code


@contextlib.contextmanager
def _ended(runner: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        if runner.poll() is None:
            runner.kill()
        runner.wait()


def _last_step(run_dir: Path) -> int:
    file = run_dir / "metrics.jsonl"
    rows = read_metrics(file) if file.exists() else []
    return int(rows[-1]["step"] or 0) if rows else -1


def _step_time_s(run_dir: Path) -> float:
    """Return the time of a step without a death: the shortest so far."""
    times_s = (row["time/step_s"] for row in read_metrics(run_dir / "metrics.jsonl")[1:])
    return min((time_s for time_s in times_s if time_s is not None), default=_STEP_S)


def accuracy_faults(learnt: Learnt, undisturbed: Learnt) -> list[str]:
    """Return whether a run came out less accurate than one in which nobody died, by more than chance."""
    bar = STANDARD_ERRORS * math.hypot(learnt.stderr, undisturbed.stderr)
    if learnt.last >= undisturbed.last - bar:
        return []
    return [f"accuracy {learnt.last:.3f}, and {undisturbed.last:.3f} where nobody died, with a bar of {bar:.3f}"]


def soak(num_runs: int, *, seed: int, victims: Sequence[Victim] = _OF_DEMO) -> list[report.Row]:
    """Play so many runs with one kill each, each of `victims` as often as the others, and return a row for each.

    Raises:
        RuntimeError: the run in which nobody is killed has a fault, or learns nothing.
    """
    undisturbed = _undisturbed()
    rng, rows = random.Random(seed), []
    for number in range(num_runs):
        victim = victims[number % len(victims)]
        kill = Kill(victim=victim, step=rng.randint(0, _NUM_STEPS + 1), moment=rng.random())
        num_engines, num_workers = rng.randint(1, 2), rng.randint(1, 2)
        folder = Path(tempfile.mkdtemp(prefix="k-"))
        outcome = _play_apart(folder, [kill], num_engines=num_engines, num_workers=num_workers)
        if outcome.learnt is not None:
            outcome.faults += accuracy_faults(outcome.learnt, undisturbed)
        row: report.Row = {
            "run": number,
            "killed": victim.value,
            "in step": kill.step,
            "at": kill.moment,
            "engines": num_engines,
            "workers": num_workers,
            "seconds": outcome.seconds,
            "infra errors": num_infra_errors(outcome.run_dir),
            "accuracy": math.nan if outcome.learnt is None else outcome.learnt.last,
            "faults": len(outcome.faults),
        }
        print(row, *outcome.faults, sep="\n  ", flush=True)
        rows.append(row)
        if outcome.faults:
            print(f"  see {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return rows


def _play_apart(folder: Path, kills: Sequence[Kill], *, num_engines: int = 1, num_workers: int = 1) -> Outcome:
    """Play the PPO demo with each of its models in a process of its own."""
    overrides = places({"actor_ref": 1, "critic": 1, "reward": 1, "rollout": num_engines})
    overrides += [f"rollout.num_workers={num_workers}", f"validation.every_steps={_NUM_STEPS}"]
    return play(folder, kills, config=_CONFIG, overrides=overrides, num_steps=_NUM_STEPS)


def _undisturbed() -> Learnt:
    """Return what the run comes to without a kill: a bar that a run without learning would miss."""
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    outcome = _play_apart(folder, [])
    learnt = outcome.learnt
    if outcome.faults or learnt is None:
        raise RuntimeError(f"the run without a kill has faults: {outcome.faults}; see {folder}")
    print(f"nobody killed: accuracy {learnt.first:.3f} to {learnt.last:.3f}, {learnt.seconds:.0f} s", flush=True)
    if learnt.last <= learnt.first + STANDARD_ERRORS * math.sqrt(2) * learnt.stderr:
        raise RuntimeError(f"the run without a kill learnt nothing: {learnt}; see {folder}")
    shutil.rmtree(folder)
    return learnt


def main() -> int:
    """Play all runs; return 1 if something was lost, mixed up or left, or less was learnt."""
    parser = report.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", type=Victim, nargs="+", choices=_OF_DEMO, default=_OF_DEMO)
    options: argparse.Namespace = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run under way is ended too
    report.print_machine()
    rows = soak(options.runs, seed=options.seed, victims=options.victims)
    report.print_table(f"{len(rows)} runs with one kill each", rows)
    report.write_json(options.json, {"runs": rows})
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
