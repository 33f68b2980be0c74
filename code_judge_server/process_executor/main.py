"""The loop of a slot: one job after the other until the server ends."""

import contextlib
import os
import signal
import socket
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any

from code_judge_server.jail.kernel import orphans
from code_judge_server.process_executor import frames
from code_judge_server.process_executor.program import run_command
from code_judge_server.process_executor.program_user import ProgramUser, find_program_user
from code_judge_server.sandbox import process_tree, work_folder
from code_judge_server.sandbox.job_pairs import PipeEnds
from code_judge_server.sandbox.outcome import JobLimits, Outcome

SHOWN_FOLDER = b"/sandbox"
"""Name of a program's folder in its output; the real name differs from run to run."""


def serve(control_fd: int, folder: str, uid: int) -> None:
    """Run the jobs that arrive on `control_fd` in folders below `folder`, until its other end is closed.

    The programs of root's server have the user `uid`.

    An error of the slot itself (a full disk, a missing interpreter) ends the process with a traceback: the server sees the
    socket close, starts another slot and sends the job again.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server decides when to stop
    control = socket.socket(fileno=control_fd)
    control.set_inheritable(False)
    if not process_tree.can_list_children():
        raise SystemExit("code judge: this kernel does not show the children of a process (CONFIG_PROC_CHILDREN)")
    orphans.adopt()
    _ensure_folders(folder)
    user = find_program_user(uid, folder)
    try:
        control.sendall(frames.pack({"kind": "ready", "may_read_all": user is not None and user.may_read_all}, []))
        for number in count():
            message = _next_job(control)
            if message is None:
                break
            _ensure_folders(folder)  # the last program may have removed them
            reply = _run_job(*message, folder=os.path.join(folder, str(number)), control=control, user=user)
            control.sendall(reply)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the server died
    finally:
        work_folder.remove(folder)
        _remove_if_empty(os.path.dirname(folder))


def _ensure_folders(folder: str) -> None:
    for path in (os.path.dirname(folder), folder):  # the first is shared by all slots of the server
        work_folder.ensure(path, lets_users_through=os.geteuid() == 0)


def _next_job(control: socket.socket) -> tuple[frames.Header, list[bytes]] | None:
    while (message := frames.receive(control)) is not None:
        if message[0]["kind"] == "job":  # otherwise a `cancel` that crossed the outcome
            return message
    return None


def _run_job(
    header: frames.Header, blobs: list[bytes], *, folder: str, control: socket.socket, user: ProgramUser | None
) -> bytes:
    """Run one command in `folder`, created before and removed after it, and return the packed outcome."""
    work_folder.make(folder, dict(zip(header["file_names"], blobs[1:], strict=True)))
    if user is not None:
        user.give(folder)
    stdin = os.memfd_create("stdin")
    try:
        with open(stdin, "wb", closefd=False) as file:
            file.write(blobs[0])
        os.lseek(stdin, 0, os.SEEK_SET)
        limits = JobLimits(**header["limits"])
        live = None if not header["live"] else partial(_send_output, control, folder)
        partner = {
            name: os.open(path, (os.O_RDONLY if name == "stdin" else os.O_WRONLY) | os.O_CLOEXEC)
            for path, name in header["fifos"]  # in the order in which the other job opens the other ends
        }
        outcome = run_command(
            header["argv"],
            folder=folder,
            stdin=stdin,
            partner=PipeEnds(**partner) if partner else None,
            limits=limits,
            control=control,
            on_output=live,
            user=user,
        )
        files, files_cut = work_folder.collect(folder, header["collect"], max_bytes=header["collect_bytes"])
        return _pack_outcome(outcome, files, files_cut=files_cut, folder=folder)
    finally:
        os.close(stdin)
        work_folder.remove(folder)


def _send_output(control: socket.socket, folder: str, name: str, content: bytes) -> None:
    control.sendall(frames.pack({"kind": "output", "name": name}, [content.replace(folder.encode(), SHOWN_FOLDER)]))


def _pack_outcome(outcome: Outcome, files: dict[str, bytes], *, files_cut: bool, folder: str) -> bytes:
    header: dict[str, Any] = asdict(replace(outcome, files_cut=files_cut))
    del header["files"], header["ended_at"]
    streams = [header.pop(name).replace(folder.encode(), SHOWN_FOLDER) for name in ("stdout", "stderr")]
    return frames.pack({"kind": "outcome", "file_names": list(files), **header}, [*streams, *files.values()])


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):  # it is missing, or other slots still use it
        os.rmdir(folder)
