"""One job through a launcher of its own, to test whether a whole tier works on this machine."""

import os
import socket
import subprocess
import sys

from code_judge_server.jail import protocol
from code_judge_server.jail.kernel.cgroups import NoCgroupsError
from code_judge_server.jail.kernel.seccomp_filter import SeccompError
from code_judge_server.jail.kernel.slot_users import SlotUsers
from code_judge_server.jail.launch.plan import HiddenPathError, Plan, job_environment, make_plan
from code_judge_server.schemas import IsolationTier

_TIMEOUT_S = 30.0
_PRELOAD = "canary"
_OUTPUT = b"alive\n"
_MIB = 1024 * 1024
_LIMITS = {"cpu_time_s": 10.0, "memory_bytes": 256 * _MIB, "max_tasks": 16, "disk_bytes": 4 * _MIB}


class _CanaryError(Exception):
    pass


def run(tier: IsolationTier, slot_users: SlotUsers | None = None, *, fast_path: bool = True) -> str | None:
    """Run a job in `tier`, as one of `slot_users` if given; return the reason if it failed, else None."""
    try:
        plan = make_plan(tier, num_slots=1, preloads={_PRELOAD: ()}, slot_users=slot_users, fast_path=fast_path)
    except (HiddenPathError, NoCgroupsError, SeccompError, OSError) as error:
        return str(error)
    try:
        return _run(plan)
    finally:
        plan.close()


def _run(plan: Plan) -> str | None:
    launcher, theirs = protocol.socket_pair()
    slot, slots_end = protocol.socket_pair()
    launcher.settimeout(_TIMEOUT_S)
    slot.settimeout(_TIMEOUT_S)
    with launcher, slot:
        with theirs:
            process = subprocess.Popen(
                plan.command(theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=job_environment(),
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            protocol.send(launcher, *plan.start_message())
            _expect(launcher, "ready")
            with slots_end:
                request = {"kind": "slot", "number": 0, "preload": _PRELOAD}
                protocol.send(launcher, request, (slots_end.fileno(),))
            _expect(launcher, "slot")
            return _judge(slot)
        except (_CanaryError, OSError, protocol.ProtocolError) as error:
            return str(error)
        finally:
            launcher.close()
            slot.close()
            process.wait()


def _expect(end: socket.socket, kind: str) -> protocol.Message:
    received = protocol.receive(end)
    if received is None:
        raise _CanaryError("the launcher died")
    message, descriptors = received
    protocol.close_all(descriptors)
    if message["kind"] != kind or message.get("error") is not None:
        raise _CanaryError(str(message.get("why") or message.get("error") or message))
    return message


def _judge(slot: socket.socket) -> str | None:
    """Run the job in the slot; return the reason if its output is wrong."""
    nothing, reading_end = os.memfd_create("nothing"), os.pipe()
    try:
        message = {
            "kind": "job",
            "argv": [sys.executable, "-I", "-S", "-c", "print('alive')"],
            "interpret": False,
            "limits": _LIMITS,
            "files": [],
            "collect": 0,
            "collect_bytes": 0,
        }
        protocol.send(slot, message, (nothing, nothing, reading_end[1], reading_end[1]))
        ended = _expect(slot, "ended")
        if ended["clears"]:
            _expect(slot, "cleared")
        os.close(reading_end[1])
        output = os.read(reading_end[0], 4096)
        return None if output == _OUTPUT else f"printed {output!r}, ended with {ended}"
    finally:
        os.close(nothing)
        os.close(reading_end[0])
