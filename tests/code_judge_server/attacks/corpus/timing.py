"""Programs that use more time than they have, and try not to be noticed or stopped."""

from attacks.attack import CRASHED, TIMED_OUT, Attack

_CPU = {"cpu_time_s": 0.4, "wall_time_s": 3.0}


def _burner(name: str, code: str, **more: object) -> Attack:
    return Attack(name=name, code=code, statuses=TIMED_OUT, limits=_CPU, says_done=False, **more)  # type: ignore[arg-type]


ATTACKS = [
    _burner("loop", "while True: pass"),
    _burner(
        "loop_behind_masked_signals",
        """
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
while True: pass
""",
    ),
    _burner("handler_of_the_soft_limit", "signal.signal(signal.SIGXCPU, lambda *_: None)\nwhile True: pass"),
    _burner(
        "threads",
        "import hashlib, threading\ndef burn():\n    while True: hashlib.sha256(bytes(1 << 20))\n"
        "for _ in range(3): threading.Thread(target=burn).start()",
    ),
    _burner("children", "os.fork(); os.fork()\nwhile True: pass"),
    _burner("one_child_while_the_parent_sleeps", "if os.fork() == 0:\n    while True: pass\ntime.sleep(60)"),
    _burner(
        "orphan_of_an_orphan",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        while True: pass\n"
        "    os._exit(0)\ntime.sleep(60)",
    ),
    _burner(
        "short_children_nobody_waits_for",
        """
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # their times are not added to this process
while True:
    if os.fork() == 0:
        until = time.process_time() + 0.02
        while time.process_time() < until: pass
        os._exit(0)
    time.sleep(0.02)
""",
    ),
    _burner(
        "relay_of_children",
        """
until = time.process_time() + 0.05
while True:  # the parent ends, the child burns on
    if time.process_time() > until:
        if os.fork() != 0:
            time.sleep(60)
        until = time.process_time() + 0.05
""",
    ),
    _burner(
        "in_the_kernel",
        "zero = open('/dev/zero', 'rb', buffering=0)\nbuffer = bytearray(1 << 20)\nwhile True: zero.readinto(buffer)",
    ),
    _burner("random_numbers", "while True: os.getrandom(1 << 20)"),
    _burner("in_one_call_of_c", "import re\nre.match('(a*)*b', 'a' * 40)"),
    _burner("in_one_multiplication", "x = 7 ** 3_000_000\nwhile True: x * x"),
    _burner("conversion_of_a_huge_number", "sys.set_int_max_str_digits(0)\nstr(7 ** 4_000_000)"),
    _burner("slow_garbage", "class Slow:\n    def __del__(self):\n        while True: pass\nslow = Slow()"),
    _burner("slow_atexit", "import atexit\n@atexit.register\ndef slow():\n    while True: pass"),
    _burner(
        "limit_raised_first",
        "import resource\ntry:\n    resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n"
        "except (OSError, ValueError):\n    pass\nwhile True: pass",
    ),
    Attack(
        name="alarm_clock_of_its_own",
        code="signal.setitimer(signal.ITIMER_REAL, 0.05)\nsay('done')\nsignal.pause()",
        statuses=CRASHED,
        says_done=False,
    ),
    Attack(
        name="time_limit_by_sleep_in_pieces",
        code="while True: time.sleep(0.001)",
        statuses=TIMED_OUT,
        limits={"cpu_time_s": 1.0, "wall_time_s": 0.7},
        says_done=False,
    ),
]
