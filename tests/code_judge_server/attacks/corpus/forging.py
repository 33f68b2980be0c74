"""Programs that lie about their end or their output. None knows the right output, `right`."""

from attacks.attack import ACCEPTED, CRASHED, FLOODED, WRONG, Attack

_MESSAGES = """
import json
messages = [
    json.dumps({"kind": "ended", "exit_code": 0, "signal": None, "cpu_time_s": 0, "wall_time_s": 0, "max_rss_bytes": 0,
                "oom_kills": 0, "peak_memory_bytes": 0, "collected": [], "error": None}).encode(),
    json.dumps({"kind": "outcome", "ending": "exited", "exit_code": 0}).encode(),
    struct.pack("!II", 2, 0) + b"{}",
    struct.pack("=i", 0) * 4,
]
"""

ATTACKS = [
    Attack(
        name="forge_messages_on_every_descriptor",
        code=_MESSAGES
        + """
for descriptor in range(3, 1001):
    for message in messages:
        try:
            os.write(descriptor, message)
        except OSError:
            continue
        say(f"reached: descriptor {descriptor}")
say('done')
os._exit(3)
""",
        statuses=CRASHED,
        expected_output="done",
        says_done=False,
    ),
    Attack(
        name="inherited_descriptors",
        code="""
opened = os.open("/dev/null", os.O_RDONLY)
os.close(opened)
for name in os.listdir("/proc/self/fd"):
    try:
        where = os.readlink(f"/proc/self/fd/{name}")
    except FileNotFoundError:
        continue
    if int(name) > 2:
        say(f"reached: descriptor {name}: {where}")
    elif where.startswith(("socket", "/proc", "anon_inode")) or int(name) and not where.startswith("pipe"):
        say(f"reached: descriptor {name} is {where}")
""",
    ),
    Attack(
        name="write_to_stdin",
        code="""
attempt_here("write to stdin", os.write, 0, b"right")
attempt_here("cut stdin", os.ftruncate, 0, 0)
def again():
    descriptor = os.open("/proc/self/fd/0", os.O_RDWR)
    return os.write(descriptor, b"right")
attempt_here("write to stdin through /proc", again)
say("stdin: " + os.read(0, 100).decode())
""",
        stdin="hello",
        expected_output="refused: write to stdin - PermissionError(1, 'Operation not permitted')",
        statuses=WRONG,
    ),
    Attack(
        name="leave_by_os_exit",
        code="say('done')\nos._exit(0)",
        expected_output="right",
        statuses=WRONG,
        says_done=False,
    ),
    Attack(
        name="patched_exit_hooks",
        code="""
import atexit, builtins, threading
for module, name in ((sys, 'exit'), (os, '_exit'), (builtins, 'exit'), (os, 'abort'), (os, 'kill')):
    setattr(module, name, lambda *_: None)
sys.excepthook = lambda *_: None
threading.excepthook = lambda *_: None
atexit._clear()
atexit.register(lambda: say('done'))
raise SystemExit(5)
""",
        expected_output="done",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="atexit_that_exits_with_zero",
        code="import atexit\natexit.register(lambda: (say('done'), os._exit(0)))\nraise RuntimeError('wrong')",
        expected_output="right",
        statuses=WRONG,
        says_done=False,
    ),
    Attack(
        name="markers_of_harnesses",
        code="""
for stream in (1, 2):
    for marker in ('__EXIT_CODE__:0', 'exit_code=0', '{"status": "accepted"}', '---END---', 'accepted', '\\x04', '\\x1a'):
        os.write(stream, (marker + '\\n').encode())
""",
        expected_output="right",
        statuses=WRONG,
    ),
    Attack(
        name="right_answer_of_a_child_after_the_end",
        code="""
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(0.4)
    os.write(1, b'right')
    os._exit(0)
""",
        expected_output="done\nright",
        statuses=WRONG,
    ),
    Attack(
        name="tampered_output_pipes",
        code="""
import fcntl
signal.signal(signal.SIGIO, signal.SIG_IGN)
say('done')
for descriptor in (1, 2):
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC)
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    try:
        fcntl.fcntl(descriptor, 1031, 1 << 16)  # F_SETPIPE_SZ
    except PermissionError:
        pass  # where nothing counts what pipes hold
os.write(os.open('/proc/self/fd/1', os.O_WRONLY), b'')
os.close(1)
os.dup2(0, 1)
os.dup2(0, 2)
""",
        expected_output="right",
        statuses=WRONG,
        says_done=False,
    ),
    Attack(
        name="steals_its_own_output",
        code="""
reader = os.open('/proc/self/fd/1', os.O_RDONLY | os.O_NONBLOCK)
os.write(1, b'right' * 1000)
os.read(reader, 100000)
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""",
        expected_output="right",
        statuses=WRONG | CRASHED,
        says_done=False,
    ),
    Attack(
        name="kills_itself_as_if_out_of_memory",
        code="say('done')\nos.kill(os.getpid(), signal.SIGKILL)",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="signals_itself_as_if_out_of_time",
        code="say('done')\nsignal.signal(signal.SIGXCPU, signal.SIG_DFL)\nos.kill(os.getpid(), signal.SIGXCPU)",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="signals_itself_as_if_a_system_call_were_forbidden",
        code="say('done')\nos.kill(os.getpid(), signal.SIGSYS)",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="exits_as_a_shell_reports_a_kill", code="say('done')\nos._exit(137)", statuses=CRASHED, says_done=False
    ),
    Attack(name="exits_as_timeout_does", code="say('done')\nos._exit(124)", statuses=CRASHED, says_done=False),
    Attack(name="raises_memory_error", code="say('done')\nraise MemoryError", statuses=CRASHED, says_done=False),
    Attack(
        name="becomes_another_program",
        code="os.execv('/bin/sh', ['sh', '-c', 'echo right; echo done; exit 7'])",
        expected_output="right\ndone",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="main_thread_leaves_first",
        code="""
import threading
def finish():
    time.sleep(0.1)
    say('done')
    os._exit(9)
threading.Thread(target=finish).start()
_libc.syscall(60, 0)  # exit of this thread alone
""",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="child_exits_for_its_parent",
        code="if os.fork() == 0:\n    say('done')\n    os._exit(0)\nos.wait()\nos._exit(1)",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="kills_its_process_group",
        code="say('done')\nos.killpg(0, signal.SIGKILL)",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="output_behind_the_limit_by_splice",
        code="""
zero = os.open('/dev/zero', os.O_RDONLY)
say('done')
while True:
    os.splice(zero, 1, 1 << 16) if hasattr(os, 'splice') else os.write(1, bytes(65536))
""",
        statuses=FLOODED | CRASHED,  # where the kernel cannot splice from this device
        says_done=False,
    ),
    Attack(
        name="objects_of_the_interpreter",
        code="""
import gc
opened = [int(name) for name in os.listdir("/proc/self/fd")]
for thing in gc.get_objects():
    if isinstance(thing, socket.socket) and thing.fileno() in opened:
        say(f'reached: a socket of the judge: {thing}')
    elif isinstance(thing, (bytes, str, bytearray)) and 'CANARY' + '-' in repr(thing[:4096]):
        say(f'reached: {thing!r:.80}')
frame = sys._getframe()
while frame is not None:
    for name, value in {**frame.f_globals, **frame.f_locals}.items():
        if isinstance(value, socket.socket) and value.fileno() in opened:
            say(f'reached: {name} of a frame: {value!r:.80}')
    frame = frame.f_back
""",
        statuses=ACCEPTED,
    ),
]
