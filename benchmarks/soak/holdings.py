"""Resources of a run at one moment: memory, descriptors and shared memory of its processes, bytes of its folders."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The holdings after so many steps.

    Example: `Sample(step=12, amounts={"memory of driver, MiB": 210.4, "descriptors": 431.0, "run.dir, MiB": 1.2})`.
    """

    step: int
    amounts: Mapping[str, float]


def sample(step: int, root: psutil.Process, folders: Mapping[str, Path]) -> Sample:
    """Count what `root` and all its descendants hold, and the sizes of `folders`, by their names."""
    amounts: dict[str, float] = {}
    for process in [root, *root.children(recursive=True)]:
        try:
            proportional, shared = _memory_of(process.pid)
            held = {
                "memory, MiB": proportional,
                f"memory of {_kind(process)}, MiB": proportional,
                "shared memory, MiB": shared,
                "descriptors": float(process.num_fds()),
                "processes": 1.0,
                "threads": float(process.num_threads()),
            }
        except (psutil.Error, OSError):
            continue  # it has just ended
        for name, amount in held.items():
            amounts[name] = amounts.get(name, 0.0) + amount
    sizes = {f"{name}, MiB": size_of(folder) / MIB for name, folder in folders.items()}
    return Sample(step=step, amounts=amounts | sizes)


def size_of(path: Path) -> int:
    """Return the bytes of all files in a folder, or of one file; what ends meanwhile does not count."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def slopes(samples: Sequence[Sample], *, leave_out_share: float) -> dict[str, float]:
    """Return by how much each amount grows per step (least squares), without the first share of the steps.

    Amounts that some sample lacks, as those of processes that are gone, are left out.
    """
    last = samples[-1].step
    counted = [sample for sample in samples if sample.step >= leave_out_share * last]
    names = set.intersection(*(set(sample.amounts) for sample in counted))
    steps = np.array([sample.step for sample in counted], dtype=float)
    if np.ptp(steps) == 0:
        raise ValueError(f"all samples after the warm-up are of step {last}: take more steps")
    return {
        name: float(np.polyfit(steps, np.array([sample.amounts[name] for sample in counted]), 1)[0])
        for name in sorted(names)
    }


def _kind(process: psutil.Process) -> str:
    """Return what a process is to the run: `ray::Actor`, a module that Python runs, or the name of a program."""
    words = process.cmdline() or [process.name()]
    if words[0].startswith("ray::"):  # `ray::Actor.method` while it is called
        return words[0].split()[0].partition(".")[0]
    title = Path(words[0]).name
    modules = [Path(word).name for word in words[1:] if not word.startswith("-")]
    if title.startswith("python") and modules:
        return "python -c" if " " in modules[0] else modules[0]
    return title


def _memory_of(pid: int) -> tuple[float, float]:
    """Return the proportional set size of a process and the part of it in shared memory, in MiB."""
    fields = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) / 1024
    return fields["Pss"], fields.get("Pss_Shmem", 0.0)
