"""The launcher: enters fresh namespaces, builds the jail root, and lets its zygotes start slots until the server closes its
socket.

The server executes it with the environment of a job and nothing else. The process that the server sees only waits; its child is
pid 1 of a pid namespace, so all zygotes, slots and jobs end with it.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
from collections.abc import Sequence
from typing import NoReturn

from code_judge_server.jail import protocol
from code_judge_server.jail.kernel import jail_root, orphans, syscalls
from code_judge_server.jail.kernel.abandoned_groups import AbandonedGroups
from code_judge_server.jail.kernel.slot_users import SlotUsers
from code_judge_server.jail.kernel.user_namespace import USER_INSIDE, enter_user_namespace, enter_user_namespace_with
from code_judge_server.jail.launch.machine import Machine
from code_judge_server.jail.launch.zygote import zygote_main

_NAMESPACES = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
)
_THREAD_STACK_BYTES = 8 * 1024 * 1024
_THREAD_ATTRIBUTES_BYTES = 256
"""An upper bound on the size of `pthread_attr_t`."""
_HOST_NAME = "sandbox"
_ORPHANS_INTERVAL_MS = 1000
_PUBLIC = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/nsswitch.conf")


def main(descriptor: int) -> NoReturn:
    """Serve the server on the other end of this socket."""
    server = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    syscalls.die_with_parent()
    _give_threads_usual_stacks()
    most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # see `confinement`
    received = protocol.receive(server)
    if received is None:
        os._exit(0)
    message, descriptors = received
    try:
        groups = AbandonedGroups(message["cgroups"])
        machine = _enter(message, descriptors)
    except (OSError, KeyError, ValueError) as error:
        protocol.send(server, {"kind": "failed", "why": f"launcher: {error}"})
        os._exit(1)
    if machine.work_folder is not None:
        _end_orphans_with_parent()
    pid = os.fork()
    if pid == 0:
        groups.close()
        _be_first_process(server, machine, message)
    server.close()
    if machine.cgroup_version is not None:
        _end_child_with_parent(pid)
    os.waitpid(pid, 0)
    if machine.cgroup_version is not None:
        groups.remove_if_server_died()
    if machine.work_folder is not None:
        orphans.end_all()
    os._exit(0)


def _give_threads_usual_stacks() -> None:
    """Give threads of this interpreter and its forks the usual stack size: the C library took the stack limit that `plan`
    starts this process with. A C library without the function gives all threads small stacks anyway.
    """
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):
        attributes = ctypes.create_string_buffer(_THREAD_ATTRIBUTES_BYTES)
        libc.pthread_attr_init(attributes)
        libc.pthread_attr_setstacksize(attributes, ctypes.c_size_t(_THREAD_STACK_BYTES))
        libc.pthread_setattr_default_np(attributes)


def _enter(message: protocol.Message, descriptors: list[int]) -> Machine:
    """Move to fresh namespaces, after opening everything needed of the machine."""
    folders = [
        {name: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for name, path in group.items()}
        for group in message["cgroups"]
    ]
    compiled = dict(zip(message["compiled"], descriptors[1:], strict=True))
    no_links = [path for path in message["read_only"] if not os.path.islink(path)]  # link targets are listed too
    machine = Machine(
        host_proc=os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC),
        seccomp=_read_all(descriptors[0]),
        fast_path=message["fast_path"],
        init=compiled.get("init"),
        job_start=compiled.get("job_start"),
        uids=message["uids"],
        cgroup_version=message["cgroup_version"],
        cgroups=folders,
        has_own_user_namespace=os.geteuid() != 0 and message["work_folder"] is None,
        slot_users=message["slot_users"] is not None,
        work_folder=message["work_folder"],
        readable=[*jail_root.SYSTEM, *jail_root.COPIED, jail_root.ALTERNATIVES, *_PUBLIC, *no_links],
        shown_in_tmp=[path for path in jail_root.outermost(message["read_only"]) if path.startswith("/tmp/")],
    )
    if machine.work_folder is not None:
        return machine
    if message["slot_users"] is not None:
        enter_user_namespace_with(SlotUsers(**message["slot_users"]))
    elif machine.has_own_user_namespace:
        enter_user_namespace()
    syscalls.unshare(_NAMESPACES)
    return machine


def _read_all(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _end_orphans_with_parent() -> None:
    """End with the parent in tier C, and kill the processes of jobs; a plain death signal would leave them behind."""
    orphans.adopt()
    signal.signal(signal.SIGTERM, orphans.end_all_and_exit)
    syscalls.die_with_parent(signal.SIGTERM)


def _end_child_with_parent(pid: int) -> None:
    """End with the parent; a plain death signal would leave the server's control groups behind."""

    def end(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    syscalls.die_with_parent(signal.SIGTERM)


def _be_first_process(server: socket.socket, machine: Machine, message: protocol.Message) -> NoReturn:
    if machine.work_folder is not None:
        _end_orphans_with_parent()
    else:
        syscalls.die_with_parent()
    try:
        if machine.work_folder is None:
            socket.sethostname(_HOST_NAME)
            jail_root.enter(
                message["read_only"],
                uids=machine.uids or [USER_INSIDE],
                own_user_namespace=machine.has_own_user_namespace,
                memory_group=machine.cgroup_version is not None,
            )
    except OSError as error:
        protocol.send(server, {"kind": "failed", "why": f"jail root: {error}"})
        os._exit(1)
    launcher = Launcher(server, machine, message["preloads"])
    protocol.send(server, {"kind": "ready"})
    launcher.serve()
    if machine.work_folder is not None:
        orphans.end_all()
    os._exit(0)


class Launcher:
    """Starts zygotes, and passes slot requests to them and their answers back."""

    def __init__(self, server: socket.socket, machine: Machine, preloads: dict[str, list[str]]) -> None:
        self._server = server
        self._machine = machine
        self._preloads = preloads
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)
        self._ends_orphans = machine.work_folder is not None
        self._zygotes: dict[str, _Zygote] = {}
        for name in preloads:
            self._start_zygote(name)

    def serve(self) -> None:
        """Serve the server until it closes its socket, or a preload set cannot be loaded."""
        signal.signal(signal.SIGCHLD, lambda *_: _reap())
        while True:
            for descriptor, _ in self._poll.poll(_ORPHANS_INTERVAL_MS if self._ends_orphans else None):
                if descriptor == self._server.fileno():
                    received = protocol.receive(self._server)
                    if received is None or not self._request(*received):
                        return
                    continue
                zygote = next(
                    (candidate for candidate in self._zygotes.values() if candidate.end.fileno() == descriptor), None
                )
                if zygote is not None and not self._pass_answer(zygote):
                    return
            if self._ends_orphans:
                orphans.end_all(keep=[zygote.pid for zygote in self._zygotes.values()])

    def _request(self, message: protocol.Message, descriptors: list[int]) -> bool:
        """Pass a slot request to its zygote; return False if that could not load its modules."""
        name = message["preload"]
        ended = self._zygotes.get(name)
        if ended is not None and ended.has_ended():  # seen before `serve` handles its end
            ended.end.setblocking(False)
            while self._zygotes.get(name) is ended:
                if not self._pass_answer(ended):
                    return False
        if name not in self._zygotes:
            self._start_zygote(name, in_hand=descriptors)
        zygote = self._zygotes[name]
        zygote.pending.append(message["number"])
        with contextlib.suppress(OSError):  # it was just killed: pending requests are answered when its end is seen
            protocol.send(zygote.end, message, tuple(descriptors))
        protocol.close_all(descriptors)
        return True

    def _pass_answer(self, zygote: "_Zygote") -> bool:
        """Pass on a zygote's message; return whether it could load its modules."""
        try:
            received = protocol.receive(zygote.end)
        except OSError:
            received = None
        if received is None:
            self._forget(zygote)
            return True
        answer = received[0]
        if answer["kind"] == "slot":
            zygote.pending.remove(answer["number"])
        protocol.send(self._server, answer)
        return answer["kind"] != "failed"

    def _start_zygote(self, name: str, in_hand: Sequence[int] = ()) -> None:
        """Fork a zygote without the descriptors `in_hand`, because a slot's death is seen by the end of its socket."""
        ours, theirs = protocol.socket_pair()
        pid = os.fork()
        if pid == 0:
            for end in (self._server, ours, *(zygote.end for zygote in self._zygotes.values())):
                end.close()
            protocol.close_all(in_hand)
            zygote_main(theirs, self._machine, self._preloads[name])
        theirs.close()
        self._zygotes[name] = _Zygote(name, pid, ours)
        self._poll.register(ours, select.POLLIN)

    def _forget(self, zygote: "_Zygote") -> None:
        """Forget a zygote that was killed with its slots; the next request starts another."""
        self._poll.unregister(zygote.end)
        zygote.end.close()
        del self._zygotes[zygote.name]
        for number in zygote.pending:
            answer = {"kind": "slot", "number": number, "preload": zygote.name, "error": "its zygote was killed"}
            protocol.send(self._server, answer)


class _Zygote:
    def __init__(self, name: str, pid: int, end: socket.socket) -> None:
        self.name = name
        self.pid = pid
        self.end = end
        self.pending: list[int] = []

    def has_ended(self) -> bool:
        """Return whether it is dead, which is before its slots' death; its end of the socket may close a moment later."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True  # and reaped


def _reap() -> None:
    """Reap zygotes, and orphans of killed ones."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0] > 0:
            pass
