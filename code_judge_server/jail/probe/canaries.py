"""The tier that a machine gives, found by trials at the server's start: first single probes that report what is missing, then a
whole job.

No setting and no version decides: a tier is reached if a job has run in it.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass

from code_judge_server.jail.kernel import seccomp_filter
from code_judge_server.jail.kernel.cgroups import NoCgroupsError, make_cgroups
from code_judge_server.jail.kernel.slot_users import SlotUsers, find_slot_users
from code_judge_server.jail.launch.plan import PACKAGE_PARENT
from code_judge_server.jail.native import compiled
from code_judge_server.jail.probe import canary_job
from code_judge_server.schemas import Canary, IsolationTier

_PROBES_TIMEOUT_S = 20.0
_PROBES = "import sys; sys.path.append(sys.argv[1]); from code_judge_server.jail.probe.probes import main; main()"
_NAMESPACES = (
    "user namespace",
    "mount namespace",
    "pid namespace",
    "network namespace",
    "ipc and uts namespaces",
    "joining namespaces",
)
_NEEDED = {
    IsolationTier.A: (*_NAMESPACES, "seccomp", "cgroups"),
    IsolationTier.B: (*_NAMESPACES, "seccomp"),
    IsolationTier.C: ("landlock", "landlock scopes or root", "seccomp"),
}


_NO_SLOT_USERS = (
    "none: neither newuidmap with a range for this user in /etc/subuid, nor CAP_SETUID; programs share with this user what "
    "the kernel counts by user"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSearch:
    """The strongest tier that works here, and the checks made to find it."""

    tier: IsolationTier
    canaries: list[Canary]
    slot_users: SlotUsers | None = None
    """Users for the slots, if the judge of an ordinary user may have them."""


def find_tier(strongest: IsolationTier = IsolationTier.A, *, num_slots: int = 1, fast_path: bool = True) -> TierSearch:
    """Find the strongest tier that works here, from `strongest` down; takes tenths of a second and leaves nothing behind."""
    canaries = [*_probe_kernel(), _probe_seccomp(), _probe_fast_path(wanted=fast_path), _probe_cgroups()]
    passed = {canary.name for canary in canaries if canary.passed}
    for tier, needed in _NEEDED.items():
        if tier.value < strongest.value or not passed.issuperset(needed):
            continue
        if tier is not IsolationTier.C and os.geteuid() != 0:
            slot_users, users_canary = _try_slot_users(tier, num_slots, fast_path=fast_path)
            canaries.append(users_canary)
            if slot_users is not None:
                return TierSearch(tier=tier, canaries=canaries, slot_users=slot_users)
        failure = canary_job.run(tier, fast_path=fast_path)
        canaries.append(Canary(name=f"a job in tier {tier.value}", passed=failure is None, detail=failure or "ran"))
        if failure is None:
            return TierSearch(tier=tier, canaries=canaries)
    return TierSearch(tier=IsolationTier.D, canaries=canaries)


def _try_slot_users(tier: IsolationTier, num_slots: int, *, fast_path: bool) -> tuple[SlotUsers | None, Canary]:
    users = find_slot_users(num_slots)
    failure = _NO_SLOT_USERS if users is None else canary_job.run(tier, users, fast_path=fast_path)
    if users is None or failure is not None:
        return None, Canary(name=f"users for slots in tier {tier.value}", passed=False, detail=failure or "")
    detail = f"a job ran; {users.described}"
    return users, Canary(name=f"users for slots in tier {tier.value}", passed=True, detail=detail)


def _probe_kernel() -> list[Canary]:
    command = [sys.executable, "-I", "-S", "-c", _PROBES, PACKAGE_PARENT]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env={}, timeout=_PROBES_TIMEOUT_S, check=True
        )
        return [Canary(name=name, passed=passed, detail=detail) for name, passed, detail in json.loads(done.stdout)]
    except subprocess.CalledProcessError as error:
        failure = error.stderr.decode(errors="replace").strip()[-200:]
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        failure = str(error)
    return [Canary(name="probes", passed=False, detail=failure)]


def _probe_seccomp() -> Canary:
    try:
        descriptor = seccomp_filter.open_filter(namespaces=True, memory_group=False, own_users=False)
    except seccomp_filter.SeccompError as error:
        return Canary(name="seccomp", passed=False, detail=str(error))
    with open(descriptor, "rb") as file:
        num_instructions = file.seek(0, 2) // 8
    return Canary(name="seccomp", passed=True, detail=f"{num_instructions} instructions")


def _probe_fast_path(*, wanted: bool) -> Canary:
    if not wanted:
        return Canary(name="compiled init", passed=False, detail="fast_path is off; using a slower one in Python")
    try:
        for open_part in (compiled.open_init, compiled.open_job_start):
            os.close(open_part())
    except compiled.NotCompiledError as error:
        return Canary(name="compiled init", passed=False, detail=f"{error}; using a slower one in Python")
    return Canary(name="compiled init", passed=True, detail="")


def _probe_cgroups() -> Canary:
    try:
        groups = make_cgroups()
        try:
            groups.make_slots(1)
            shares = "and" if groups.has_shares else "no"
        finally:
            groups.remove()
    except (NoCgroupsError, OSError) as error:
        return Canary(name="cgroups", passed=False, detail=str(error))
    detail = f"version {groups.version}: memory, tasks and CPU time, {shares} shares of the CPU"
    return Canary(name="cgroups", passed=True, detail=detail)
