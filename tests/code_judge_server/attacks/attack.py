"""An attack, and the prelude that every attacking program begins with.

An attacking program reports its own reach, with `attempt`: a line `reached: ...` or `refused: ...` for each try, and `done` at
the end. So a program that crashed by our mistake is not mistaken for one that was held, and the same program without isolation
(tier D) shows that it does reach its target.
"""

from dataclasses import dataclass, field
from typing import Any

from code_judge_server.schemas import VerdictStatus

ACCEPTED = frozenset({VerdictStatus.ACCEPTED})
WRONG = frozenset({VerdictStatus.WRONG_ANSWER})
CRASHED = frozenset({VerdictStatus.RUNTIME_ERROR})
TIMED_OUT = frozenset({VerdictStatus.TIME_LIMIT_EXCEEDED})
OUT_OF_MEMORY = frozenset({VerdictStatus.MEMORY_LIMIT_EXCEEDED})
FLOODED = frozenset({VerdictStatus.OUTPUT_LIMIT_EXCEEDED})
NOT_COMPILED = frozenset({VerdictStatus.COMPILE_ERROR})

MIB = 1024 * 1024
LIMITS: dict[str, float] = {
    "cpu_time_s": 1.0,
    "wall_time_s": 30.0,
    "memory_bytes": 128 * MIB,
    "output_bytes": MIB,
    "max_tasks": 64,
    "disk_bytes": 16 * MIB,
}

PRELUDE = '''
import ctypes, errno, os, re, signal, socket, struct, sys, time
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
CANARY = re.compile(rb"CANARY-[0-9a-f]{{16}}")
TARGET = {target!r}

def say(text):
    os.write(1, (text + "\\n").encode(errors="replace"))

def attempt_here(what, action, *arguments):
    try:
        result = action(*arguments)
    except BaseException as error:
        say(f"refused: {{what}} - {{error!r:.150}}")
    else:
        say(f"reached: {{what}} - {{result!r:.150}}")

def attempt(what, action, *arguments):
    """In a child, which may hang or be killed for it."""
    child = os.fork()
    if child == 0:
        signal.alarm(2)
        attempt_here(what, action, *arguments)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        say(f"refused: {{what}} - signal {{os.WTERMSIG(status)}}")

def syscall(number, *arguments):
    result = _libc.syscall(ctypes.c_long(number), *(
        ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def passes_the_check(number, *arguments):
    """Whether rights are the only thing that a call with senseless arguments lacks."""
    try:
        return syscall(number, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        return f"allowed, but {{error}}"

def found(findings):
    if not findings:
        raise LookupError("nothing found")
    return findings

def changes(file, action, *arguments):
    """Whether an action has an effect on a file: some are only said to be done."""
    before = os.stat(file).st_ctime_ns
    action(file, *arguments)
    return found(os.stat(file).st_ctime_ns != before)
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """A program that tries to get out, to lie, to harm or to stay, and its allowed verdicts."""

    name: str
    code: str
    statuses: frozenset[VerdictStatus] = ACCEPTED
    """Statuses that a contest may give it."""
    language: str = "python"
    stdin: str = ""
    expected_output: str | None = None
    limits: dict[str, float] = field(default_factory=dict)
    """Limits added to `LIMITS`."""
    reached_in_tier_d: tuple[str, ...] = ()
    """Attempts that succeed where nothing isolates the program (as an ordinary user, and without harm)."""
    says_done: bool = True
    """True if it ends by itself, and therefore prints `done`."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Other fields of the submission."""
    slow: bool = False

    def submission(self, target: dict[str, Any]) -> dict[str, Any]:
        """Return the submission; the program finds `target` under the name TARGET."""
        code = self.code
        if self.language == "python":
            code = PRELUDE.format(target=target) + code + ("\nsay('done')\n" if self.says_done else "\n")
        submission: dict[str, Any] = {
            "id": self.name,
            "language": self.language,
            "code": code,
            "stdin": self.stdin,
            "limits": LIMITS | self.limits,
            **self.extra,
        }
        if self.expected_output is not None:
            submission["expected_output"] = self.expected_output
        return submission


def reached(verdict: dict[str, Any]) -> list[str]:
    """Return everything a program reached, by its own report."""
    return [line for line in verdict["stdout"].splitlines() if line.startswith("reached: ")]
