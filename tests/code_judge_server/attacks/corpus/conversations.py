"""Programs and interactors that misuse the pipes between them: they steal, stall, flood, stay, or aim at the other side.

An attacking side reports its reach on stderr: its stdout is the other side's stdin.
"""

from dataclasses import dataclass, field
from typing import Any

from attacks.attack import ACCEPTED, CRASHED, FLOODED, LIMITS, MIB, OUT_OF_MEMORY, PRELUDE, TIMED_OUT, WRONG

from code_judge_server.schemas import VerdictStatus

INTERACTOR_FAILED = frozenset({VerdictStatus.INTERNAL_ERROR})
_SAY_ON_STDERR = "def say(text):\n    os.write(2, (text + '\\n').encode(errors='replace'))\n"
_ONE_SECOND = {"wall_time_s": 1.0}

ASKS_ONCE = """
import sys
print("question", flush=True)
sys.exit(0 if sys.stdin.readline() == "answer\\n" else 1)
"""
ANSWERS = "import sys\ninput()\nprint('answer', flush=True)\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A program and its interactor, one of which attacks, and the statuses that a contest may give."""

    name: str
    program: str = ANSWERS
    interactor: str = ASKS_ONCE
    attacks: tuple[str, ...] = ("program",)
    """Sides that get the prelude of attacks."""
    statuses: frozenset[VerdictStatus]
    limits: dict[str, float] = field(default_factory=dict)
    """Limits added to `LIMITS`."""
    skip_in: str = ""
    """Tiers where a documented limit lets the attack succeed."""

    def submission(self, target: dict[str, Any], *, secret: str) -> dict[str, Any]:
        """Return the submission, whose interactor has `secret` in its first and last files."""
        prelude = PRELUDE.format(target=target) + _SAY_ON_STDERR
        program, interactor = (
            prelude + code if side in self.attacks else code
            for side, code in (("program", self.program), ("interactor", self.interactor))
        )
        return {
            "id": self.name,
            "code": program,
            "interactor": {"code": interactor},
            "tests": [{"stdin": secret, "expected_output": secret}],
            "limits": LIMITS | {"wall_time_s": 10.0} | self.limits,
        }


ATTACKS = [
    Conversation(
        name="both_fill_their_pipes",
        program="os.write(1, bytes(1 << 21))\nsys.stdin.read()",
        interactor="import os, sys\nos.write(1, bytes(1 << 21))\nsys.stdin.read()",
        statuses=TIMED_OUT,
        limits=_ONE_SECOND,
    ),
    Conversation(name="both_wait", program="input(); input()", statuses=TIMED_OUT, limits=_ONE_SECOND),
    Conversation(
        name="closes_its_ends_and_stays",
        program="os.close(0)\nos.close(1)\ntime.sleep(60)",
        statuses=TIMED_OUT,
        limits=_ONE_SECOND,
    ),
    Conversation(
        name="leaves_a_child_that_holds_the_pipes",
        program="input()\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n",
        statuses=WRONG,
    ),
    Conversation(
        name="answers_and_leaves_a_child_that_goes_on",
        program="""
input()
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    while True:
        try:
            os.write(1, b"answer\\n" * 1000)
        except OSError:
            pass
os.write(1, b"answer\\n")
""",
        statuses=ACCEPTED,
    ),
    Conversation(
        name="sends_without_end",
        program="while True: os.write(1, b'x' * 65536)",
        interactor="import os\nheld = []\nwhile chunk := os.read(0, 1 << 16): held.append(chunk)",
        statuses=FLOODED,
        limits={"cpu_time_s": 10.0, "wall_time_s": 30.0},
    ),
    Conversation(
        name="sends_lines_without_end",
        program="while True: os.write(1, b'x\\n' * 32768)",
        interactor="import sys\nfor line in sys.stdin: int(1)",
        statuses=FLOODED | TIMED_OUT,
        limits={"wall_time_s": 2.0},
    ),
    Conversation(
        name="goes_on_when_nobody_reads",
        program="""
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
while True:
    try:
        os.write(1, b"x\\n")
    except OSError:
        pass
""",
        statuses=TIMED_OUT,
        limits={"cpu_time_s": 0.3},
    ),
    Conversation(
        name="reads_back_what_it_prints",
        program="""
back = os.open("/proc/self/fd/1", os.O_RDONLY)
input()
os.write(1, b"answer\\n")
os.read(back, 100)
time.sleep(60)
""",
        statuses=TIMED_OUT | ACCEPTED,
        limits=_ONE_SECOND,
    ),
    Conversation(
        name="keeps_the_other_end_of_its_stdin",
        program="os.open('/proc/self/fd/0', os.O_WRONLY)\ninput()\nos.write(1, b'wrong\\n')\nsys.stdin.read()",
        statuses=TIMED_OUT,
        limits=_ONE_SECOND,
    ),
    Conversation(
        name="takes_away_the_rights_to_the_pipes",
        program="""
input()
for descriptor in (0, 1):
    for action in (lambda: os.fchmod(descriptor, 0), lambda: os.chmod(f"/proc/self/fd/{descriptor}", 0)):
        try:
            action()
        except OSError as error:
            say(f"refused: {error}")
os.write(1, b"ready\\n")
input()
os.write(1, b"answer\\n")
""",
        interactor="""
import os, sys
os.write(1, b"question\\n")
os.read(0, 6)
with open("/dev/stdout", "w") as out:
    out.write("question\\n")
sys.exit(0 if open("/dev/stdin").readline() == "answer\\n" else 1)
""",
        statuses=ACCEPTED | INTERACTOR_FAILED,  # where both sides are one user, the pipes are the program's too
    ),
    Conversation(
        name="changes_the_pipes",
        program="""
import fcntl
input()
for descriptor in (0, 1):
    for command, value in (
        (1031, 4096), (1031, 1 << 20), (1031, 1 << 30),  # F_SETPIPE_SZ
        (fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC), (fcntl.F_SETOWN, -1), (fcntl.F_SETSIG, 9),
        (1024, 0), (1026, 0x8000001F),  # F_SETLEASE, F_NOTIFY
    ):
        try:
            fcntl.fcntl(descriptor, command, value)
        except OSError as error:
            say(f"refused: {command} {error}")
    fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
os.write(1, b"answer\\n")
""",
        statuses=ACCEPTED,
    ),
    Conversation(
        name="splices_the_pipes",
        program="""
input()
memory = ctypes.create_string_buffer(b"answer\\n" * 10000)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
piece = Piece(ctypes.addressof(memory), 7)
_libc.vmsplice.restype = _libc.splice.restype = _libc.tee.restype = ctypes.c_ssize_t
if _libc.vmsplice(1, ctypes.byref(piece), ctypes.c_ulong(1), 8) != 7:
    os.write(1, b"answer\\n")
reading, writing = os.pipe()
back = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
_libc.tee(back, writing, ctypes.c_size_t(65536), 2)
_libc.splice(0, None, 1, None, ctypes.c_size_t(65536), 2)
""",
        statuses=ACCEPTED | WRONG,
    ),
    Conversation(
        name="looks_for_the_interactors_files",
        program="""
import glob
def secret(path):
    with open(path, "rb") as file:
        return found(CANARY.findall(file.read(4096)))
names = ("input.txt", "expected.txt")
places = [".", "..", "/sandbox", "/tmp", "/dev/shm", *glob.glob("../*"), *glob.glob("../../*"), *glob.glob("/tmp/*/*")]
me = os.getpid()
pids = [pid for pid in range(me - 100, me + 100) if pid > 0 and pid != me]
try:
    pids += [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (me, *pids)]
except OSError:
    pass
places += [f"/proc/{pid}/{where}" for pid in pids for where in ("cwd", "root/sandbox", "fd")]
for place in places:
    for name in (*names, *map(str, range(12))):
        path = f"{place}/{name}"
        try:
            what = secret(path)
        except BaseException as error:
            continue
        say(f"reached: {path} {what}")
for pid in pids:
    for where in ("environ", "cmdline", "mem", "maps"):
        try:
            what = open(f"/proc/{pid}/{where}", "rb").read(4096)
        except OSError:
            continue
        if b"expected.txt" in what:
            say(f"reached: {where} of {pid} {what}")
input()
os.write(1, b"answer\\n")
""",
        statuses=ACCEPTED,
        skip_in="D",
        limits={"cpu_time_s": 5.0},
    ),
    Conversation(
        name="signals_everybody",
        program="""
input()
child = os.fork()
if child == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    me = os.getpid()
    for number in (signal.SIGSTOP, signal.SIGPIPE, signal.SIGKILL):
        for pid in (*range(2, me - 1), *range(me + 1, me + 200)):
            if pid != os.getppid():
                try:
                    os.kill(pid, number)
                    say(f"reached: {number} of {pid}")
                except OSError:
                    pass
    os._exit(0)
os.waitpid(child, 0)
os.write(1, b"answer\\n")
""",
        statuses=ACCEPTED,
        skip_in="D",
        limits={"cpu_time_s": 5.0},
    ),
    Conversation(
        name="stops_itself",
        program="input()\nos.kill(os.getpid(), signal.SIGSTOP)",
        statuses=TIMED_OUT,
        limits=_ONE_SECOND,
    ),
    Conversation(
        name="ends_by_sigpipe_though_read",
        program="""
input()
os.write(1, b"wrong\\n")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.kill(os.getpid(), signal.SIGPIPE)
""",
        statuses=WRONG,
    ),
    Conversation(
        name="claims_to_be_left",
        program="sys.stderr.write('EOFError\\n')\ninput()\nos.write(1, b'wrong\\n')\nos._exit(3)",
        statuses=WRONG | CRASHED,
    ),
    Conversation(
        name="tells_the_interactors_words",
        program="input()\nos.write(2, b'interactor: EOFError\\n')\nos._exit(0)",
        statuses=WRONG,
    ),
    Conversation(
        name="forks_until_refused",
        program="while True:\n    if os.fork() == 0: time.sleep(60)",
        statuses=CRASHED,
        limits={"wall_time_s": 20.0, "cpu_time_s": 10.0, "memory_bytes": 1024 * MIB},
    ),
    Conversation(
        name="takes_all_memory",
        program="input()\nheld = []\nwhile True: held.append(bytearray(b'x') * (1 << 22))",
        statuses=OUT_OF_MEMORY | CRASHED,
    ),
    Conversation(
        name="computes_while_the_interactor_waits",
        program="while True: pass",
        statuses=TIMED_OUT,
        limits={"cpu_time_s": 0.3},
    ),
    Conversation(
        name="interactor_hangs_when_left",
        program="input()",
        interactor="import time\nprint(1, flush=True)\ntime.sleep(60)",
        attacks=(),
        statuses=INTERACTOR_FAILED,
        limits=_ONE_SECOND,
    ),
    Conversation(
        name="interactor_accepts_and_leaves",
        program="input()\nwhile True: pass",
        interactor="print(1, flush=True)",
        attacks=(),
        statuses=TIMED_OUT,
        limits={"cpu_time_s": 0.3},
    ),
    Conversation(
        name="interactor_writes_much_that_nobody_reads",
        program="pass",
        interactor="import os\nwhile True: os.write(1, bytes(1 << 16))",
        attacks=(),
        statuses=WRONG,
    ),
    Conversation(
        name="interactor_writes_much_to_stderr",
        interactor="import os\nprint(1, flush=True)\nwhile True: os.write(2, bytes(1 << 16))",
        attacks=(),
        statuses=INTERACTOR_FAILED,
    ),
    Conversation(
        name="interactor_leaves_a_child_that_holds_the_pipes",
        program="input()\nimport sys\nsys.stdin.read()",
        interactor="import os, time\nprint(1, flush=True)\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\n",
        attacks=(),
        statuses=ACCEPTED,
    ),
    Conversation(
        name="interactor_forks_until_refused",
        interactor="import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(60)",
        attacks=(),
        statuses=INTERACTOR_FAILED | TIMED_OUT | CRASHED,
        limits={"wall_time_s": 3.0},
    ),
    Conversation(
        name="interactor_takes_all_memory",
        interactor="held = []\nwhile True: held.append(bytearray(b'x') * (1 << 22))",
        attacks=(),
        statuses=INTERACTOR_FAILED,
        limits={"wall_time_s": 20.0},
    ),
]
