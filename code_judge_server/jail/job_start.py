"""A slot's way to fork a job by `job_start.c`, where that is compiled; elsewhere `slot` does the same."""

import ctypes
from collections.abc import Mapping, Sequence

from code_judge_server.jail.jail_root import WORK_FOLDER


class _Limit(ctypes.Structure):
    """`struct limit`."""

    _fields_ = (("kind", ctypes.c_uint64), ("value", ctypes.c_uint64))


class Start(ctypes.Structure):
    """`struct start`."""

    _fields_ = (
        ("uid", ctypes.c_int64),
        ("init", ctypes.c_int32),
        ("ruleset", ctypes.c_int32),
        ("oom_score_adj", ctypes.c_int32),
        ("contents", ctypes.c_int32),
        ("standard", ctypes.c_int32 * 3),
        ("report", ctypes.c_int32),
        ("num_files", ctypes.c_uint32),
        ("num_limits", ctypes.c_uint32),
        ("sizes", ctypes.POINTER(ctypes.c_uint64)),
        ("limits", ctypes.POINTER(_Limit)),
        ("folder", ctypes.c_char_p),
    )


class JobStart:
    """The loaded library.

    Args:
        descriptor: of its file.
    """

    def __init__(self, descriptor: int) -> None:
        """Load it.

        Raises:
            OSError: it cannot be.
        """
        # Not `CDLL`, which would let go of the interpreter's lock: the fork would have to take it back.
        self._start_job = ctypes.PyDLL(f"/proc/self/fd/{descriptor}").start_job
        self._start_job.argtypes = [ctypes.POINTER(Start)]

    def fork(
        self,
        *,
        init: int,
        ruleset: int | None,
        uid: int | None,
        oom_score_adj: int,
        descriptors: Sequence[int],
        report: int,
        sizes: Sequence[int],
        limits: Mapping[int, int],
    ) -> int:
        """Fork a job; return its process id, -1 if there is none, and 0 in the job itself.

        Args:
            init: pidfd of the first process of its namespaces.
            ruleset: of Landlock, if there is one.
            uid: its user, if that is not this process's.
            oom_score_adj: of the job.
            descriptors: files and their names, stdin, stdout, stderr.
            report: where it writes why it could not be made.
            sizes: of the files.
            limits: of `resource.setrlimit`, by kind.
        """
        start = Start(
            init=init,
            ruleset=-1 if ruleset is None else ruleset,
            uid=-1 if uid is None else uid,
            oom_score_adj=oom_score_adj,
            contents=descriptors[0],
            standard=(ctypes.c_int32 * 3)(*descriptors[1:4]),
            report=report,
            num_files=len(sizes),
            num_limits=len(limits),
            sizes=(ctypes.c_uint64 * len(sizes))(*sizes),
            limits=(_Limit * len(limits))(*limits.items()),
            folder=WORK_FOLDER.encode(),
        )
        return self._start_job(start)
