"""A slot: forks one job at a time into a fresh enclosure, and reports its end.

A slot is a zygote's child. Every job can read the slot's memory, so code, input and output of programs, and the names of their
files, pass through it as descriptors only.
"""

import errno
import json
import os
import resource
import select
import socket
import time
from contextlib import nullcontext
from typing import NoReturn

from code_judge_server.jail import protocol
from code_judge_server.jail.python import execution, python_main
from code_judge_server.jail.slot import work_files
from code_judge_server.jail.slot.confinement import Confinement
from code_judge_server.jail.slot.enclosure import Enclosure, EnclosureError
from code_judge_server.jail.slot.job_start import JobMaker
from code_judge_server.jail.slot.slot_cgroup import SlotCgroup

_REPORT_BYTES = 4096
_OOM_SCORE_ADJ = 1000
"""The kernel kills a job before its slot."""
_NO_END: protocol.Message = {
    "kind": "ended",
    "exit_code": None,
    "signal": None,
    "cpu_time_s": 0.0,
    "wall_time_s": 0.0,
    "max_rss_bytes": 0,
    "oom_kills": None,
    "peak_memory_bytes": None,
    "tasks_refused": None,
    "collected": [],
    "error": None,
}


class Slot:
    """Runs one job after the other."""

    def __init__(
        self,
        server: socket.socket,
        enclosure: Enclosure,
        confinement: Confinement,
        cgroup: SlotCgroup | None,
        *,
        helper: int | None,
        maker: JobMaker | None,
    ) -> None:
        """Keep the parts; `helper` hangs up when the enclosure's helper dies, and without a `maker` jobs are forks of this
        process.
        """
        self._server = server
        self._enclosure = enclosure
        self._confinement = confinement
        self._cgroup = cgroup
        self._report, self._reporting = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)
        self._idle_poll = select.poll()
        self._idle_poll.register(server, select.POLLIN)
        self._maker = maker
        self._helper = helper
        if helper is not None:
            self._idle_poll.register(helper, 0)  # hang-ups are still reported

    def serve(self) -> None:
        """Run jobs until the server closes its socket.

        Raises:
            ProtocolError, KeyError, TypeError, ValueError: the server sent an invalid job.
            OSError: the kernel refuses.
        """
        while (received := self._next_message()) is not None:
            message, descriptors = received
            if message["kind"] == "job":
                self._run(message, descriptors)
            else:
                protocol.close_all(descriptors)  # a kill that came too late

    def _next_message(self) -> tuple[protocol.Message, list[int]] | None:
        """Wait for the server's next message; without a helper fail now, to be replaced, rather than fail the next job."""
        if self._helper in [descriptor for descriptor, _ in self._idle_poll.poll()]:
            raise OSError(errno.EPIPE, "the helper is gone")
        return protocol.receive(self._server)

    def _run(self, job: protocol.Message, descriptors: list[int]) -> None:
        limits = job["limits"]
        if self._cgroup is not None:
            self._cgroup.start_job(limits["memory_bytes"], limits["max_tasks"])
        try:
            self._enclosure.open(
                limits["disk_bytes"], memory_bytes=limits["memory_bytes"], proc_is_writable="oom_score_adj" in job
            )
            started_at = time.monotonic()
            pid = self._fork_job(job, descriptors)
        except EnclosureError as error:
            protocol.close_all(descriptors)
            totals = {} if self._cgroup is None else self._cgroup.end_job()
            self._say_ended({**_NO_END, **totals, "error": str(error)})
            return
        protocol.close_all(descriptors[1:4])
        status, usage, killed = self._wait(pid)
        wall_time_s = time.monotonic() - started_at
        collected = []
        error = self._read_report()
        if job["collect"]:
            if not killed and error is None:
                collected = self._collect(job, descriptors[0], descriptors[4])
            os.close(descriptors[4])
        os.close(descriptors[0])
        orphans_cpu_time_s = self._enclosure.close()
        ended = {
            **_NO_END,
            "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
            "cpu_time_s": usage.ru_utime + usage.ru_stime + orphans_cpu_time_s,
            "wall_time_s": wall_time_s,
            "max_rss_bytes": usage.ru_maxrss * 1024,
            "collected": collected,
            "error": error,
        }
        if self._cgroup is not None:
            ended.update(self._cgroup.end_job())
        self._say_ended(ended)

    def _say_ended(self, ended: protocol.Message) -> None:
        """Report the end to the server, and only then remove the job's files, so that its verdict does not wait for that."""
        clears = self._enclosure.clears
        protocol.send(self._server, {**ended, "clears": clears})
        if clears:
            self._enclosure.clear()
            protocol.send(self._server, {"kind": "cleared"})

    def _fork_job(self, job: protocol.Message, descriptors: list[int]) -> int:
        oom_score_adj = job.get("oom_score_adj", _OOM_SCORE_ADJ)
        if self._maker is not None:
            pid = self._maker.fork_job(job, descriptors, self._reporting, oom_score_adj)
        elif (pid := python_main.fork()) == 0:
            self._be_job(job, descriptors, oom_score_adj)
        if pid < 0:
            self._enclosure.close()
            raise EnclosureError("job: it cannot be forked: no memory, or its init was killed")
        return pid

    def _wait(self, pid: int) -> tuple[int, resource.struct_rusage, bool]:
        """Wait for a process of the job, and kill the job on the server's request; also return whether it was killed."""
        pidfd = os.pidfd_open(pid)
        self._poll.register(pidfd, select.POLLIN)
        interval_ms = self._enclosure.reaping_interval_ms
        killed = False
        while pidfd not in (ready := [descriptor for descriptor, _ in self._poll.poll(interval_ms)]):
            if not ready:
                self._enclosure.reap(keep=pid)
                continue
            self._read_kill_request()
            self._enclosure.kill()
            killed = True
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status, usage = os.wait4(pid, 0)
        return status, usage, killed

    def _read_kill_request(self) -> None:
        """Read the server's message in the middle of a job, which can only be a kill."""
        received = protocol.receive(self._server)
        if received is None:
            self._poll.unregister(self._server)  # `serve` sees it closed after the job's end
            return
        message, descriptors = received
        protocol.close_all(descriptors)
        if message["kind"] != "kill":
            raise protocol.ProtocolError(f"slot: `{message['kind']}` while a job runs")

    def _be_job(self, job: protocol.Message, descriptors: list[int], oom_score_adj: int) -> NoReturn:
        """Turn this fork into the job; it never returns to the slot's code."""
        self._server.detach()  # so that the object closes no descriptor of the job's if the job's end finalizes it
        try:
            self._enter(oom_score_adj)
            self._confinement.set_limits(job["limits"])
            self._confinement.become_user()
            work_files.write_files(descriptors[0], job["files"])
            for target, source in enumerate(descriptors[1:4]):
                os.dup2(source, target)
            os.setsid()
            self._confinement.lock_in()
        except BaseException as error:  # noqa: BLE001 - reported to the server; raising would run the slot's code in the job
            # Without the name of a file, which the slot would keep in memory.
            reason = error.strerror if isinstance(error, OSError) else None
            os.write(self._reporting, f"job: {type(error).__name__}: {reason}".encode()[:_REPORT_BYTES])
            os._exit(1)
        execution.run(job["argv"], interpret=job["interpret"])

    def _enter(self, oom_score_adj: int) -> None:
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        os.write(score, str(oom_score_adj).encode())
        self._enclosure.enter()

    def _collect(self, job: protocol.Message, contents: int, target: int) -> list[list[int | None]]:
        """Copy the job's files by a process with the job's rights, after killing the rest of the job."""
        reading, writing = os.pipe2(os.O_CLOEXEC)
        with nullcontext() if self._maker is None else self._maker.whole_forks():
            pid = os.fork()
            if pid == 0:
                self._be_collector(job, contents, target, writing)
        os.close(writing)
        _, _, killed = self._wait(pid)
        with open(reading, "rb") as report:
            text = report.read()
        return json.loads(text) if text and not killed else []

    def _be_collector(self, job: protocol.Message, contents: int, target: int, writing: int) -> NoReturn:
        try:
            self._enclosure.clear_out()
            self._enter(_OOM_SCORE_ADJ)
            self._confinement.become_user()
            names = work_files.read_names(contents, job["files"])[len(job["files"]) :]
            collected = work_files.collect_files(names, job["collect_bytes"], target)
            with open(writing, "wb") as report:
                report.write(json.dumps(collected).encode())
        finally:
            os._exit(0)

    def _read_report(self) -> str | None:
        """Return the reason if the job could not be set up."""
        try:
            return os.read(self._report, _REPORT_BYTES).decode(errors="replace")
        except BlockingIOError:
            return None
