"""The start of a command with its rlimits, its environment and its own session.

RLIMIT_AS is not among the rlimits, because numpy's OpenBLAS reserves address space that it never uses. RLIMIT_DATA is set to
twice the memory limit plus stacks for the allowed threads, so that normally the sampled size decides; a single allocation of
many gigabytes that it refuses is a runtime error with Python's MemoryError. RLIMIT_NPROC is not set either: it counts all
processes of the user, and does not apply to root.
"""

import math
import os
import resource
import stat
import subprocess
import sys

from code_judge_server.jail.kernel import syscalls
from code_judge_server.process_executor.program_user import ProgramUser
from code_judge_server.sandbox.outcome import JobLimits

_OPEN_FILES = 1024
_STACK_BYTES = 8 * 1024 * 1024


def spawn(
    argv: list[str],
    *,
    folder: str,
    stdin: int,
    stdout: int,
    stderr: int,
    limits: JobLimits,
    user: ProgramUser | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in `folder` on these file descriptors, as this process's own user or as `user`."""
    slot_pid = os.getpid()
    if user is not None:
        for fd in (stdout, stderr):
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | 0o222)  # it may open /dev/stdout, as any program may

    def prepare() -> None:
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)  # so that this process can always kill its children
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")  # when memory runs out the kernel kills this program, not the trainer beside it
        _set_rlimits(limits)
        if user is not None:
            user.become()
        syscalls.die_with_parent()  # a change of user clears it
        if os.getppid() != slot_pid:
            os._exit(1)

    return subprocess.Popen(
        argv,
        cwd=folder,
        env=_environment(folder),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,
        preexec_fn=prepare,  # this process has one thread
    )


def _set_rlimits(limits: JobLimits) -> None:
    wanted = {
        resource.RLIMIT_CPU: math.ceil(limits.cpu_time_s) + 1,
        resource.RLIMIT_DATA: 2 * limits.memory_bytes + limits.max_tasks * _STACK_BYTES,
        resource.RLIMIT_FSIZE: limits.disk_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    for name, value in wanted.items():
        allowed = resource.getrlimit(name)[1]
        value = value if allowed == resource.RLIM_INFINITY else min(value, allowed)
        resource.setrlimit(name, (value, value))
    # It counts as memory. With any other limit each thread of a C program would get a stack of that size.
    most = resource.getrlimit(resource.RLIMIT_STACK)[1]
    resource.setrlimit(resource.RLIMIT_STACK, (most, most))


def _environment(folder: str) -> dict[str, str]:
    return {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": folder,
        "TMPDIR": folder,
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",  # equal programs print sets in the same order
        "OPENBLAS_NUM_THREADS": "1",  # slots share the cores
        "OMP_NUM_THREADS": "1",
    }
