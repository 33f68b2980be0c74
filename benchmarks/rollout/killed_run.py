"""A run in which processes are killed at chosen moments, and the faults of what it leaves.

A moment is a share of a step's time (`Kill`), or a number of calls that the run's agents write into a file (`CallKill`).
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil

from agentrl.observability.metrics_file import read_metrics
from benchmarks.gateway.program_agent import AGENT_MODULE, CallEvent
from benchmarks.rollout.accounting import faults_of_run
from benchmarks.training.topologies import Learnt, learnt_in

_START_S = 15.0
"""Approximate time of a start."""
_END_S = 2.0
"""Approximate time of the end; some runs are shorter."""
_STEP_S = 3.0
"""Assumed time of a step before the first measurement."""
_RUN_TIMEOUT_S = 1500.0
_END_TIMEOUT_S = 30.0
_POLL_S = 0.05
_CALL_POLL_S = 0.005


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
        if not words:
            return False
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill: of what, in which step, and after which share of the time that a step takes.

    Step 0 is the start; the one after the last is the end, in which the last checkpoint and the policy are written.
    """

    victim: Victim
    step: int
    moment: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKill:
    """One kill in a run of `AGENT_MODULE`: of what, and at which call since the kill before."""

    victim: Victim
    """AGENT: the caller; WORKER: the one that serves the call."""
    event: CallEvent
    num_calls: int


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Outcome of a run."""

    run_dir: Path
    killed: list[Kill | CallKill] = field(default_factory=list)
    prompts_of_killed_agents: list[str] = field(default_factory=list)
    seconds: float = 0.0
    output: str = ""
    faults: list[str] = field(default_factory=list)
    learnt: Learnt | None = None
    """Absent where it did not finish, or did not measure it."""


def play(
    folder: Path,
    kills: Sequence[Kill | CallKill],
    *,
    config: str,
    overrides: Sequence[str],
    num_steps: int,
    agent_tools: Sequence[dict[str, Any]] = (),
) -> Outcome:
    """Run a config, kill what `kills` say, in their order, and look at what is there afterwards.

    Args:
        folder: for the run's directory, the temporary files of all its processes, and nothing else; with a short name, because
            sockets are made in it.
        kills: ascending by step, one for a step at most; or by calls, of a run whose agents write into `calls_file(folder)`.
        config: of a demo.
        overrides: what else is to be changed of it.
        num_steps: of the run.
        agent_tools: tools that the agents of the run show the policy.
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
            family, calls = _Family(runner.pid, temporary), _Calls(calls_file(folder))
            for kill in kills:
                if isinstance(kill, CallKill):
                    is_done = _kill_at_call(kill, runner, family, calls, outcome)
                else:
                    phase_s = {0: _START_S, num_steps + 1: _END_S}.get(kill.step)
                    is_done = _kill_in_step(kill, phase_s, runner, family, outcome.run_dir)
                if is_done:
                    outcome.killed.append(kill)
            code = _wait(runner, family, give_up_at=started_at + _RUN_TIMEOUT_S)
        output.seek(0)
        outcome.output = output.read()
    outcome.seconds = time.monotonic() - started_at
    outcome.faults += [
        f"{kill} found nothing to kill"
        for kill in kills[len(outcome.killed) :]
        if isinstance(kill, CallKill) or kill.step <= num_steps
    ]
    if code != 0:
        outcome.faults.append(f"exit status {code}: {outcome.output[-500:]}")
    else:
        outcome.learnt = learnt_in(outcome.run_dir, seconds=outcome.seconds)
    outcome.faults += [f"left: {words}" for words in family.left()]
    outcome.faults += [f"left: {path}" for path in temporary.iterdir()]
    outcome.faults += faults_of_run(outcome.run_dir, config=config, overrides=overrides, agent_tools=agent_tools)
    return outcome


def calls_file(folder: Path) -> Path:
    """Return the file into which the agents of a run in `folder` write their calls."""
    return folder / "calls"


class _Family:
    """Every process that a runner has started so far."""

    def __init__(self, pid: int, temporary: Path) -> None:
        self._runner = psutil.Process(pid)
        self._seen: set[psutil.Process] = set()
        self._mark = f"TMPDIR={temporary}".encode()

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
        return [process for process in self.look() if victim.is_in(_words(process))]

    def left(self) -> list[str]:
        """Return, as text, those that have not ended a while after the runner has; also orphans that `look` never saw."""
        self._seen.update(process for process in psutil.process_iter() if self._has_mark(process.pid))
        return _still_running(self._seen)

    def _has_mark(self, pid: int) -> bool:
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One line that an agent wrote."""

    event: CallEvent
    pid: int
    worker: int
    """Process id of its parent, the worker that serves it."""
    prompt_id: str


class _Calls:
    """Reads the agents' calls as they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0

    def new(self) -> list[_Call]:
        """Return the calls since the last look."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            text, _, _ = file.read().rpartition(b"\n")
        self._position += len(text) + 1 if text else 0
        return [_read_call(line) for line in text.decode().splitlines()]


def _read_call(line: str) -> _Call:
    event, pid, worker, prompt_id = line.split(" ", 3)
    return _Call(event=CallEvent(event), pid=int(pid), worker=int(worker), prompt_id=prompt_id)


def _still_running(processes: Collection[psutil.Process]) -> list[str]:
    """Wait a while for the end of `processes`, and return, as text, those that have not ended."""
    give_up_at = time.monotonic() + _END_TIMEOUT_S
    while (running := [words for process in processes if (words := _words(process))]) and time.monotonic() < give_up_at:
        time.sleep(_POLL_S)
    return [" ".join(words)[:200] for words in running]


def _words(process: psutil.Process) -> list[str]:
    """Return the command line of a process, empty if it has ended."""
    try:
        return process.cmdline() if process.is_running() and process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.NoSuchProcess:
        return []


def _kill_in_step(
    kill: Kill, phase_s: float | None, runner: subprocess.Popen[bytes], family: _Family, run_dir: Path
) -> bool:
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


def _kill_at_call(
    kill: CallKill, runner: subprocess.Popen[bytes], family: _Family, calls: _Calls, outcome: Outcome
) -> bool:
    """Wait for the call, or for the first one after it that finds the victim alive, and kill; False: the run ended first.

    What the victim has started must end with it, long before the run does.
    """
    num_left = kill.num_calls
    while runner.poll() is None:
        new = [call for call in calls.new() if call.event is kill.event]
        num_left -= len(new)
        if new and num_left <= 0 and (below := _kill_of_call(kill.victim, new[-1], family)) is not None:
            if kill.victim is Victim.AGENT:
                outcome.prompts_of_killed_agents.append(new[-1].prompt_id)
            outcome.faults += [f"outlived its {kill.victim}: {words}" for words in _still_running(below)]
            return True
        time.sleep(_CALL_POLL_S)
    return False


def _kill_of_call(victim: Victim, call: _Call, family: _Family) -> list[psutil.Process] | None:
    """Kill the victim that takes part in a call; return the processes below it, or None if it was not there."""
    try:
        match victim:
            case Victim.AGENT:
                candidates = [psutil.Process(call.pid)]
            case Victim.WORKER:
                candidates = [psutil.Process(call.worker)]
            case _:
                candidates = family.look()
        for process in candidates:
            if victim.is_in(_words(process)):
                process.suspend()  # else it might end by itself, or start another process, just before the kill
                while process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE):
                    time.sleep(_CALL_POLL_S)
                if not _words(process):
                    return None
                below = process.children(recursive=True)
                process.kill()
                return below
    except psutil.NoSuchProcess:
        pass
    return None


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
