"""Programs that use up a machine's resources: processes, memory of every kind, files, pipes, output.

Each stops by itself at some thousand pieces or a gigabyte, in case the judge fails. If a contest has a status for a program
that does not handle the refusal, that status is required; a program that handles it may continue, within its limits.
"""

from attacks.attack import ACCEPTED, CRASHED, FLOODED, MIB, OUT_OF_MEMORY, TIMED_OUT, Attack

_REFUSED = CRASHED  # the call fails, and the program with it
_TASKS = {"wall_time_s": 2.0, "memory_bytes": 1024 * MIB}
_PATIENCE = {"wall_time_s": 50.0, "cpu_time_s": 20.0}
"""Limits of programs that end sooner, however slow the machine."""


def _bomb(fork: str) -> str:
    """Return a program in which each process forks; the first continues until its own fork is refused."""
    return f"""
first = os.getpid()
for _ in range(12): {fork}
for _ in range(3000):
    if os.getpid() != first or os.fork() == 0: break
time.sleep(60)
"""


ATTACKS = [
    Attack(
        name="fork_bomb",
        code=_bomb("os.fork()"),
        statuses=CRASHED,
        limits=_TASKS | _PATIENCE,
        says_done=False,
    ),
    Attack(
        name="fork_bomb_out_of_its_session",
        code=_bomb("os.fork() or os.setsid()"),
        statuses=CRASHED,
        limits=_TASKS | _PATIENCE,
        says_done=False,
    ),
    Attack(
        name="fork_bomb_that_goes_on_when_refused",
        code="""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(3000):
    try:
        if os.fork() == 0 and os.fork() == 0:
            time.sleep(60)
    except OSError:
        pass
time.sleep(60)
""",
        statuses=CRASHED | TIMED_OUT,
        limits=_TASKS,
        says_done=False,
    ),
    Attack(
        name="zombies",
        code="for _ in range(3000):\n    if os.fork() == 0: os._exit(0)",
        statuses=CRASHED,
        limits=_TASKS,
        says_done=False,
    ),
    Attack(
        name="shell_bomb",
        language="bash",
        code="ulimit -u 3000; depth=0; bomb() { depth=$((depth+1)); [ $depth -gt 11 ] || { bomb & bomb & }; sleep 60; }; bomb",
        statuses=CRASHED | TIMED_OUT,
        limits=_TASKS,
        says_done=False,
    ),
    Attack(
        name="thread_bomb",
        code="import threading\nfor _ in range(3000): threading.Thread(target=time.sleep, args=(60,)).start()",
        statuses=CRASHED | TIMED_OUT,  # the main thread fails, and then waits for those that it started
        limits=_TASKS,
        says_done=False,
    ),
    Attack(
        name="exec_loop",
        limits={"cpu_time_s": 0.5},
        code="""
count = int(os.environ.get("COUNT", "0"))
if count < 3000:
    os.environ["COUNT"] = str(count + 1)
    os.execv(sys.executable, [sys.executable, *sys.argv])
""",
        statuses=TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="list_that_grows",
        code="hoard = []\nfor _ in range(1000): hoard.append(bytearray(b'x' * 1_000_000))",
        statuses=OUT_OF_MEMORY,
        says_done=False,
    ),
    Attack(
        name="one_large_object",
        code="hoard = bytearray(b'x') * 1_000_000_000",
        statuses=OUT_OF_MEMORY | CRASHED,
        says_done=False,
    ),
    Attack(
        name="memory_of_children",
        code="for _ in range(4): os.fork()\nhoard = b'x' * 60_000_000\ntime.sleep(2)",
        statuses=OUT_OF_MEMORY,
        says_done=False,
    ),
    Attack(
        name="memory_of_a_child_that_its_parent_survives",
        code="""
child = os.fork()
if child == 0:
    hoard = []
    for _ in range(1000): hoard.append(bytearray(b'x' * 1_000_000))
os.waitpid(child, 0)
""",
        statuses=OUT_OF_MEMORY | CRASHED,
        says_done=False,
    ),
    Attack(
        name="shared_memory",
        code="import mmap\nhoard = mmap.mmap(-1, 1 << 30)\n"
        "for start in range(0, 1 << 30, 1 << 20): hoard[start:start + (1 << 20)] = bytes(1 << 20)",
        statuses=OUT_OF_MEMORY | CRASHED,
        says_done=False,
    ),
    Attack(
        name="shared_memory_that_is_not_resident",
        code="""
import mmap
hoard = mmap.mmap(-1, 1 << 30)
for start in range(0, 1 << 30, 1 << 20):
    hoard[start:start + (1 << 20)] = bytes(1 << 20)
    hoard.madvise(mmap.MADV_DONTNEED)  # it leaves the sight of this process, and stays in memory
""",
        statuses=OUT_OF_MEMORY | CRASHED,
        says_done=False,
    ),
    Attack(
        name="shared_memory_in_small_regions",
        code="""
import mmap
PIECE, PAGE = 4 << 20, 4096
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.prctl(4, 0, 0, 0, 0)  # not dumpable: others of its user cannot look at its mappings
for _ in range(256):
    piece = _libc.mmap(None, PIECE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(piece, 1, PIECE)
    _libc.munmap(piece + PAGE, PIECE - PAGE)  # what the rest holds stays in memory
time.sleep(1)
""",
        statuses=OUT_OF_MEMORY,
        says_done=False,
    ),
    Attack(
        name="memory_files",
        code="""
files = [os.memfd_create(str(number)) for number in range(64)]
for file in files:
    for _ in range(16): os.write(file, bytes(1 << 20))
""",
        statuses=OUT_OF_MEMORY | _REFUSED,
        says_done=False,
    ),
    Attack(
        name="memory_file_that_is_not_read",
        code="file = os.memfd_create('x')\nfor _ in range(1000): os.write(file, bytes(1 << 20))",
        statuses=OUT_OF_MEMORY | _REFUSED,
        says_done=False,
    ),
    *(
        Attack(
            name=f"files_in_{name}",
            code=f"os.chdir({folder!r})\nfor number in range(500): open(str(number), 'wb').write(bytes(1 << 20))",
            statuses=OUT_OF_MEMORY | _REFUSED,
            says_done=False,
        )
        for name, folder in (("the_work_folder", "."), ("tmp", "/tmp"), ("shared_memory", "/dev/shm"))
    ),
    Attack(
        name="one_large_file",
        code="file = open('x', 'wb')\nfor _ in range(500): file.write(bytes(1 << 20))",
        statuses=OUT_OF_MEMORY | _REFUSED,
        says_done=False,
    ),
    Attack(
        name="sparse_file",
        code="os.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 42)",
        statuses=_REFUSED,
        says_done=False,
    ),
    Attack(
        name="inodes",
        code="for number in range(200_000): os.close(os.open(str(number), os.O_CREAT))",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="links",
        code="open('x', 'w').close()\n"
        "for number in range(200_000): os.link('x', f'{number:0200}'); os.symlink('x' * 4000, f's{number}')",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="deep_folders",
        code="for _ in range(100_000):\n    os.mkdir('d' * 200); os.chdir('d' * 200)",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="loop_of_links",
        code="os.symlink('a', 'b'); os.symlink('b', 'a'); os.symlink('.', 'here'); os.symlink('/', 'root')",
    ),
    Attack(
        name="extended_attributes",
        code="open('x', 'w').close()\nfor number in range(100_000): os.setxattr('x', f'user.{number}', bytes(60_000))",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="pipes",
        code="""
import fcntl
hoard = []
for _ in range(400):
    reader, writer = os.pipe()
    hoard.append(reader)
    fcntl.fcntl(writer, 1031, 1 << 20)
    os.set_blocking(writer, False)
    try:
        while True: os.write(writer, bytes(1 << 16))
    except BlockingIOError:
        pass
""",
        statuses=_REFUSED | OUT_OF_MEMORY,
        says_done=False,
    ),
    Attack(
        name="socket_buffers",
        code="""
hoard = []
for _ in range(400):
    pair = socket.socketpair()
    hoard.append(pair)
    pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 24)
    pair[0].setblocking(False)
    try:
        while True: pair[0].send(bytes(1 << 16))
    except BlockingIOError:
        pass
say('done')
os._exit(1)
""",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="watches",
        code="""
import select
def watch():
    watching, pipe = select.epoll(), os.pipe()
    for number in range(100, 200):
        watching.register(os.dup2(pipe[0], number), select.EPOLLIN)
    return "a hundred watches"
if os.getuid() < 2_000_000_000:  # no user of its own: they count as the server's
    attempt("watches of the server's user", watch)
""",
        reached_in_tier_d=("watches of the server's user",),
    ),
    Attack(
        name="descriptors_in_flight",
        code="""
file = os.memfd_create('x')
ends = []
for _ in range(400):
    pair = socket.socketpair()
    ends.append(pair)
    pair[0].setblocking(False)
    try:
        while True: socket.send_fds(pair[0], [b'x'], [file, pair[1].fileno()] * 100)
    except OSError:
        pass
time.sleep(0.5)  # the kernel counts them by user, and the judge sends descriptors too
""",
        statuses=_REFUSED | OUT_OF_MEMORY | ACCEPTED,
        says_done=False,
    ),
    Attack(
        name="open_files",
        code="hoard = [os.open('/dev/null', os.O_RDONLY) for _ in range(1 << 20)]",
        statuses=_REFUSED,
        says_done=False,
    ),
    Attack(
        name="page_tables",
        code="""
import mmap
area = mmap.mmap(-1, 1 << 39, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE)
for start in range(0, 1 << 37, 1 << 21): area[start] = 1
say('done')
os._exit(1)
""",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="mappings",
        code="""
import mmap
hoard = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ if number % 2 else mmap.PROT_WRITE) for number in range(200_000)]
""",
        statuses=_REFUSED | OUT_OF_MEMORY,
        limits=_PATIENCE,
        says_done=False,
    ),
    Attack(
        name="system_v_memory",
        code="""
_libc.shmat.restype = ctypes.c_void_p
for number in range(100):
    segment = _libc.shmget(0, 16 << 20, 0o1600)
    if segment < 0: sys.exit("no segment")
    address = _libc.shmat(segment, None, 0)
    ctypes.memset(address, 1, 16 << 20)
    _libc.shmdt(ctypes.c_void_p(address))
""",
        statuses=_REFUSED | OUT_OF_MEMORY,
        says_done=False,
    ),
    Attack(
        name="message_queues",
        code="""
queues = 0
while queues < 40_000:
    queue = _libc.msgget(0, 0o1600)
    if queue < 0: break
    queues += 1
    while _libc.msgsnd(queue, struct.pack("=q", 1) + bytes(8000), 8000, 0o4000) == 0: pass
sys.exit(f"{queues} queues")
""",
        statuses=_REFUSED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="deep_recursion_in_c",
        code="def nest(depth):\n    return [nest(depth - 1)] if depth else []\nsys.setrecursionlimit(10**9)\nnest(10**8)",
        statuses=CRASHED | OUT_OF_MEMORY | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="locked_memory",
        code="attempt('mlockall', lambda: found(_libc.mlockall(3) == 0 and _libc.mlockall(7) == 0 and None))",
    ),
    Attack(name="output", code="while True: os.write(1, b'x' * 65536)", statuses=FLOODED, says_done=False),
    Attack(name="errors", code="while True: os.write(2, b'x' * 65536)", statuses=FLOODED, says_done=False),
    Attack(
        name="output_by_bytes",
        code="for _ in range(10**8): os.write(1, b'x'); os.write(2, b'')",
        statuses=FLOODED | TIMED_OUT,
        says_done=False,
    ),
    Attack(
        name="output_of_children",
        code="for _ in range(4): os.fork()\nfor _ in range(1000): os.write(1, b'x' * 65536)\ntime.sleep(60)",
        statuses=FLOODED,
        says_done=False,
    ),
    Attack(
        name="output_just_within_the_limit",
        code=f"os.write(1, b'x' * 4000 + b'\\n')\nfor _ in range(3): os.write(2, b'x' * {MIB // 3})",
    ),
    Attack(
        name="output_after_the_streams_are_closed",
        code="copy = os.dup(1)\nos.close(1); os.close(2); os.close(0)\nwhile True: os.write(copy, b'x' * 65536)",
        statuses=FLOODED,
        says_done=False,
    ),
]
