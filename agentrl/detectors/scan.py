"""Run of all detectors over the record of a run, a process per core for a large one."""

import math
import os
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

from agentrl.detectors.base import Detector
from agentrl.detectors.user_detectors import load_detectors
from agentrl.errors import DataError
from agentrl.trajectories.store import read_prompts, read_trajectories
from agentrl.user_code import described

_BYTES_PER_PROCESS = 32_000_000
"""Compressed bytes that are worth a process, which takes a second to start."""

_detectors_of_process: list[Detector] = []
_problems_of_process: dict[str, str] = {}


@dataclass(slots=True, kw_only=True)
class StepScan:
    """Findings in the trajectories of one step."""

    step: int
    trajectory_ids: list[str] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    """NaN for a trajectory without a reward."""
    values: dict[str, list[float]] = field(default_factory=dict)
    """Number of places, 1 or 0, or the number that was measured, of each trajectory; keyed by detector."""
    measured: set[str] = field(default_factory=set)
    """Detectors that return numbers."""
    problems: dict[str, str] = field(default_factory=dict)
    """Reasons why detectors were given up, keyed by detector."""


def scan_files(files: Sequence[Path], detectors: Sequence[Detector]) -> list[StepScan]:
    """Scan files in this process.

    Raises:
        ValueError: a file is damaged.
    """
    problems: dict[str, str] = {}
    return [_scan(file, detectors, problems) for file in files]


def scan_in_processes(files: Sequence[Path], config: Path | None) -> list[StepScan]:
    """Scan files with the shipped detectors and those of a `detectors.yaml`, in as many processes as it is worth.

    Raises:
        ConfigError: the detectors cannot be built.
        ValueError: a file is damaged.
        DataError: a detector has ended its process.
    """
    detectors = load_detectors(config)
    num_bytes = sum(file.stat().st_size for file in files)
    num_processes = min(os.cpu_count() or 1, len(files), num_bytes // _BYTES_PER_PROCESS)
    if num_processes < 2:
        return scan_files(files, detectors)
    pool = ProcessPoolExecutor(
        num_processes, mp_context=get_context("spawn"), initializer=_start_process, initargs=(config,)
    )
    try:
        # Processes inherit the mask, so that Ctrl-C waits until they can end without a traceback.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            scans = pool.map(_scan_in_process, files)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return list(scans)
    except BrokenProcessPool as error:
        raise DataError(
            "a process of the scan was killed, by a lack of memory or by native code of a detector"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _start_process(config: Path | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it at once, in the middle of a user's function too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _detectors_of_process[:] = load_detectors(config)


def _scan_in_process(file: Path) -> StepScan:
    return _scan(file, _detectors_of_process, _problems_of_process)


def _scan(file: Path, detectors: Iterable[Detector], problems: dict[str, str]) -> StepScan:
    prompts = read_prompts(file)
    scan = StepScan(step=int(file.stem.rpartition("_")[2]), values={detector.name: [] for detector in detectors})
    for trajectory in read_trajectories(file):
        scan.trajectory_ids.append(trajectory.trajectory_id)
        scan.rewards.append(math.nan if trajectory.reward is None else trajectory.reward)
        for detector in detectors:
            name = detector.name
            if name in problems:
                continue
            try:
                found = detector.hits(trajectory, prompts.get(trajectory.prompt_id))
            except Exception as error:  # noqa: BLE001 - a detector of the user's may raise anything
                text = str(error) if isinstance(error, DataError) else described(error)
                problems[name] = f"{trajectory.trajectory_id}: {text}"
                continue
            if isinstance(found, float):
                scan.measured.add(name)
            scan.values[name].append(float(len(found)) if isinstance(found, list) else float(found))
    scan.problems = dict(problems)
    return scan
