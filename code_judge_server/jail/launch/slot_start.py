"""The change of a zygote's fork into a slot: the groups, namespaces and ids that it enters for good."""

import contextlib
import os
import socket

from code_judge_server.jail.kernel import landlock, syscalls
from code_judge_server.jail.kernel.user_namespace import USER_INSIDE, become_slot_user, enter_user_namespace
from code_judge_server.jail.launch import loopback
from code_judge_server.jail.launch.machine import Machine
from code_judge_server.jail.slot import folder_enclosure
from code_judge_server.jail.slot.confinement import Confinement
from code_judge_server.jail.slot.enclosure import NamespaceEnclosure
from code_judge_server.jail.slot.inits import Inits
from code_judge_server.jail.slot.job_start import JobMaker, JobStart
from code_judge_server.jail.slot.slot import Slot
from code_judge_server.jail.slot.slot_cgroup import SlotCgroup
from code_judge_server.sandbox.thread_priority import request_short_slices

_OOM_SCORE_ADJ = "-900"


def open_slot(server: socket.socket, machine: Machine, job_start: JobStart | None, number: int, preload: str) -> Slot:
    """Make this process slot `number` of a preload set; jobs arrive on the socket `server`."""
    uid = machine.uids[number] if machine.uids is not None else None
    cgroup = SlotCgroup(machine.cgroup_version, machine.cgroups[number]) if machine.cgroup_version else None
    if machine.work_folder is not None:
        return _open_without_namespaces(server, machine, f"slot-{number}-{preload}", uid)
    if machine.slot_users:
        become_slot_user(number + 1)
    if machine.has_own_user_namespace:
        enter_user_namespace(as_user=USER_INSIDE)  # the kernel counts a user's tasks separately in each namespace
    syscalls.unshare(syscalls.CLONE_NEWNET | syscalls.CLONE_NEWCGROUP)
    with contextlib.suppress(OSError):  # reported by the canaries; programs then have no network
        loopback.bring_up()
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
    if cgroup is not None:
        _outlive_jobs()
    helper = Inits(machine.init, uid=USER_INSIDE if uid is None else uid, shown_in_tmp=machine.shown_in_tmp)
    syscalls.drop_bounding_set()  # after the helper, which gets its capabilities from it
    ruleset = landlock.scopes()
    confinement = Confinement(uid=uid, ruleset=lambda: ruleset, limits_memory=cgroup is None, tasks_besides=lambda: 0)
    request_short_slices()  # the slot's work for a job is short, and the next job waits for it
    confinement.bind_slot(machine.seccomp)
    syscalls.die_with_parent()  # last: a change of user or group clears it
    enclosure = NamespaceEnclosure(helper)
    maker = None if job_start is None else JobMaker(job_start, enclosure, confinement)
    return Slot(server, enclosure, confinement, cgroup, helper=helper.fileno(), maker=maker)


def _outlive_jobs() -> None:
    """Let the kernel kill a job's processes before this process and its helper when their group runs out of memory."""
    with contextlib.suppress(PermissionError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(_OOM_SCORE_ADJ)  # needs CAP_SYS_RESOURCE, which a container may lack


def _open_without_namespaces(server: socket.socket, machine: Machine, name: str, uid: int | None) -> Slot:
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        with contextlib.suppress(PermissionError):  # no_new_privs replaces it
            syscalls.drop_bounding_set()
    enclosure = folder_enclosure.FolderEnclosure(f"{machine.work_folder}/{name}", uid=uid)
    confinement = Confinement(
        uid=uid,
        ruleset=lambda: landlock.files_and_scopes(enclosure.folder, machine.readable),
        limits_memory=True,
        tasks_besides=folder_enclosure.count_own_tasks if uid is None else lambda: 0,
        filter_of_jobs=machine.seccomp,  # the slot must change the modes of files that jobs leave behind
    )
    confinement.bind_slot(None)
    syscalls.die_with_parent()
    return Slot(server, enclosure, confinement, None, helper=None, maker=None)
