"""Programs that try to survive their end, or to resist being killed."""

from attacks.attack import ACCEPTED, CRASHED, TIMED_OUT, Attack

_SHORT = {"wall_time_s": 0.7}

ATTACKS = [
    Attack(
        name="child_that_outlives_its_parent",
        code="if os.fork() == 0:\n    time.sleep(60)",
    ),
    Attack(
        name="daemon",
        code="""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in range(1, 65):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        os.chdir('/')
        for descriptor in range(3):
            os.close(descriptor)
        time.sleep(60)
    os._exit(0)
os.wait()
""",
    ),
    Attack(
        name="daemon_that_holds_stdout",
        code="if os.fork() == 0:\n    os.setsid()\n    while True:\n        time.sleep(1)",
    ),
    Attack(
        name="daemon_that_forks_on",
        code="""
if os.fork() == 0:
    os.setsid()
    while True:  # never the same process for long
        if os.fork() != 0:
            os._exit(0)
        time.sleep(0.001)
""",
    ),
    Attack(
        name="daemon_that_keeps_the_processor",
        code="if os.fork() == 0:\n    os.setsid()\n    while True:\n        pass",
    ),
    Attack(
        name="subreaper",
        code="syscall(157, 36, 1, 0, 0, 0)\n"
        "if os.fork() == 0:\n    if os.fork() == 0:\n        time.sleep(60)\n    os._exit(0)\nos.wait()",
    ),
    Attack(
        name="sleeper",
        code="os.close(1)\nos.close(2)\ntime.sleep(60)",
        statuses=TIMED_OUT,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="sleeper_behind_ignored_signals",
        code="""
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
time.sleep(60)
""",
        statuses=TIMED_OUT,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="stops_itself",
        code="os.kill(os.getpid(), signal.SIGSTOP)",
        statuses=TIMED_OUT,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="child_stops_its_parent",
        code="if os.fork() == 0:\n    os.kill(os.getppid(), signal.SIGSTOP)\n    os._exit(0)\ntime.sleep(60)",
        statuses=TIMED_OUT,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="waits_for_a_child_that_never_ends",
        code="if os.fork() == 0:\n    signal.pause()\nos.wait()",
        statuses=TIMED_OUT,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="suspended_by_vfork",
        code="""
# The parent of a vfork waits in the kernel, deaf to signals, until its child is gone: the child stops itself.
if syscall(58) == 0:
    syscall(62, syscall(39), 19)
    syscall(60, 0)
""",
        statuses=TIMED_OUT | CRASHED,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="stopped_by_a_debugger_of_its_own",
        code="""
child = os.fork()
if child == 0:
    try:
        syscall(101, 0, 0, 0, 0)  # PTRACE_TRACEME
    finally:
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
time.sleep(0.2)
""",
    ),
    Attack(
        name="waits_for_a_pipe_that_nobody_fills",
        code="os.mkfifo('fifo')\nopen('fifo').read()",
        statuses=TIMED_OUT,
        limits=_SHORT,
        says_done=False,
    ),
    Attack(
        name="holds_files_and_folders",
        code="""
os.mkdir('deep'); os.chdir('deep'); os.mkdir('deeper'); os.chmod('deeper', 0)
kept = open('kept', 'w')
os.unlink('kept')
os.rmdir('../deep') if not os.listdir('.') else os.chmod('.', 0)
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
""",
    ),
    Attack(
        name="removes_its_folder",
        code="import shutil\nif TARGET['isolated']:\n    shutil.rmtree(os.getcwd(), ignore_errors=True)\n    os.chdir('/')",
        statuses=ACCEPTED,
    ),
]
