"""The text printed when the server is ready: its isolation, slots and limits."""

from collections.abc import Sequence

from code_judge_server.sandbox.executor import Executor
from code_judge_server.schemas import Canary, IsolationTier
from code_judge_server.settings import MIB, Settings

_MEANING = {
    IsolationTier.A: "namespaces and cgroups",
    IsolationTier.B: "user namespaces, no cgroup",
    IsolationTier.C: "Landlock, seccomp and rlimits, no namespaces",
    IsolationTier.D: "none: programs have this server's rights",
}


def start_page(settings: Settings, executor: Executor, address: str) -> str:
    """Return the lines for an operator; the first is `listening on ADDRESS`, which parent processes read."""
    rows = [
        ("isolation", f"tier {executor.tier}: {_MEANING[executor.tier]}; memory: {executor.memory_enforcement}"),
        *(("", _canary(canary)) for canary in executor.canaries),
        ("slots", f"{settings.slot_count}, and {settings.spare_slot_count} for while others sleep"),
        ("preloads", ", ".join(_preload(name, modules) for name, modules in executor.preloads.items()) or "none"),
        ("limits", _limits(settings)),
    ]
    return "\n".join([f"listening on {address}", *(f"  {name:<10} {text}".rstrip() for name, text in rows)]) + "\n"


def _canary(canary: Canary) -> str:
    text = f"{'passed' if canary.passed else 'FAILED'}  {canary.name}"
    return f"{text}: {canary.detail}" if canary.detail else text


def _preload(name: str, modules: Sequence[str]) -> str:
    return f"{name} ({' '.join(modules)})" if modules else name


def _limits(settings: Settings) -> str:
    most = settings.max_limits
    assert most.memory_bytes is not None
    assert most.output_bytes is not None
    assert most.disk_bytes is not None
    return (
        f"cpu {most.cpu_time_s:g} s, wall {most.wall_time_s:g} s, memory {most.memory_bytes / MIB:g} MiB, "
        f"output {most.output_bytes / MIB:g} MiB, disk {most.disk_bytes / MIB:g} MiB, {most.max_tasks} tasks"
    )
