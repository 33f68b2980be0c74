"""A zygote: an interpreter with a preload set in memory, from which slots are forked."""

import gc
import os
import select
import selectors
import signal
import socket
import sys
import traceback
from typing import NoReturn

from code_judge_server.jail import protocol
from code_judge_server.jail.kernel import orphans, syscalls
from code_judge_server.jail.kernel.jail_root import WORK_FOLDER
from code_judge_server.jail.launch import preload
from code_judge_server.jail.launch.machine import Machine
from code_judge_server.jail.launch.slot_start import open_slot
from code_judge_server.jail.python import execution, python_main
from code_judge_server.jail.slot.job_start import JobStart


def zygote_main(launcher: socket.socket, machine: Machine, modules: list[str]) -> NoReturn:
    """Load `modules`, then fork a slot for each request, until the launcher ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    syscalls.die_with_parent()
    if machine.work_folder is not None:
        orphans.adopt()
        from code_judge_server.jail.python import process_sharing  # here, as programs of other tiers need nothing of it

        process_sharing.install()
    job_start = _load_job_start(machine)
    if job_start is not None:
        job_start.keep_blocks_on_heap()
    if not machine.jobs_are_own_users:
        selectors.DefaultSelector = selectors.PollSelector  # jobs have no epoll: see `seccomp_filter`
    try:
        preload.load(modules, fast_path=machine.fast_path)
    except ImportError as error:
        protocol.send(launcher, {"kind": "failed", "why": f"preload set {modules}: {error}"})
        os._exit(1)
    if job_start is None or not _take_snapshot(job_start, launcher):
        job_start = None
        preload.use_huge_pages()
    poll = select.poll()
    poll.register(launcher, select.POLLIN)
    slots: dict[int, int] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in slots:
                os.waitpid(slots.pop(descriptor), 0)
                poll.unregister(descriptor)
                os.close(descriptor)
                if machine.work_folder is not None:
                    orphans.end_all(keep=slots.values())
                continue
            received = protocol.receive(launcher)
            if received is None:
                os._exit(0)
            message, descriptors = received
            pid = python_main.fork()
            if pid == 0:
                for pidfd in slots:
                    os.close(pidfd)
                _slot_main(launcher, machine, job_start, message, descriptors)
            protocol.close_all(descriptors)
            pidfd = os.pidfd_open(pid)
            slots[pidfd] = pid
            poll.register(pidfd, select.POLLIN)


def _load_job_start(machine: Machine) -> JobStart | None:
    if machine.job_start is None or machine.work_folder is not None:
        return None
    try:
        return JobStart(machine.job_start)
    except OSError as error:  # compiled for another C library than the interpreter's, for example
        sys.stderr.write(f"zygote: the compiled start of jobs does not load, using a slower one: {error}\n")
        return None


def _take_snapshot(job_start: JobStart, launcher: socket.socket) -> bool:
    """Take the snapshot from which all jobs start, and become such a job in each of them; return False if it fails."""
    python_main.freeze()
    python_main.get_ready([sys.executable, "main.py"], WORK_FOLDER)  # the command of most jobs
    try:
        is_job = job_start.take_snapshot()
    except OSError as error:
        sys.stderr.write(f"zygote: no snapshot of the memory can be taken, using slower forks: {error}\n")
        return False
    if is_job:
        launcher.detach()  # so that the object closes no descriptor of the job's if the job's end finalizes it
        execution.run_encoded(job_start.arguments())
    return True


def _slot_main(
    launcher: socket.socket,
    machine: Machine,
    job_start: JobStart | None,
    message: protocol.Message,
    descriptors: list[int],
) -> NoReturn:
    answer = {"kind": "slot", "number": message["number"], "preload": message["preload"]}
    try:
        server = socket.socket(fileno=descriptors[0])
        slot = open_slot(server, machine, job_start, message["number"], message["preload"])
    except OSError as error:
        protocol.send(launcher, {**answer, "error": f"slot {message['number']}: {error}"})
        os._exit(1)
    protocol.send(launcher, {**answer, "pid": machine.pid_as_server_sees_it()})
    launcher.close()
    machine.close()
    gc.freeze()  # including all objects of the slot: the end of a program scans the others
    try:
        slot.serve()
    except (OSError, protocol.ProtocolError, KeyError, TypeError, ValueError):
        traceback.print_exc(file=sys.stderr)
        os._exit(1)
    os._exit(0)
