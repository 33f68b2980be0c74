"""Programs that ask the kernel for things that a program should not have.

Every call is harmless if it succeeds: it changes only the process that makes it, sets a value that is already set, or has
invalid arguments, which a caller with the right would get an error for. The numbers are those of x86-64.
"""

from attacks.attack import Attack

ATTACKS = [
    Attack(
        name="new_namespaces",
        code="""
FLAGS = {"mount": 0x20000, "uts": 0x4000000, "ipc": 0x8000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000,
         "cgroup": 0x2000000, "time": 0x80}
for name, flag in FLAGS.items():
    attempt(f"unshare {name}", syscall, 272, flag)
    attempt(f"unshare user and {name}", syscall, 272, flag | 0x10000000)
def cloned(flag):
    child = syscall(56, flag | 17, 0, 0, 0, 0)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a child in a namespace"
def cloned3(flag):
    child = syscall(435, struct.pack("=QQQQQQQQ", flag, 0, 0, 0, 17, 0, 0, 0), 64)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "a child in a namespace"
for name, flag in FLAGS.items():
    if name != "time":
        attempt(f"clone {name}", cloned, flag)
    attempt(f"clone3 {name}", cloned3, flag)
""",
        reached_in_tier_d=("unshare user",),
    ),
    Attack(
        name="namespaces_of_others",
        code="""
for pid in ("1", "self", str(os.getppid()), str(TARGET["server_pid"])):
    for name in ("mnt", "pid", "net", "user", "ipc", "uts", "cgroup"):
        attempt(f"enter {name} of {pid if pid != str(TARGET['server_pid']) else 'server'}",
                lambda: syscall(308, os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), 0))
""",
    ),
    Attack(
        name="mounts",
        code="""
os.mkdir("here")
def mount(source, target, kind, flags):
    result = syscall(165, source, target, kind, flags, 0)
    syscall(166, target, 2)
    return result
attempt("mount tmpfs", mount, b"none", b"here", b"tmpfs", 0)
attempt("mount proc", mount, b"none", b"here", b"proc", 0)
attempt("mount sysfs", mount, b"none", b"here", b"sysfs", 0)
attempt("mount cgroup", mount, b"none", b"here", b"cgroup2", 0)
attempt("mount overlay", mount, b"none", b"here", b"overlay", 0)
attempt("bind mount", mount, b"/", b"here", None, 0x1000)
for path in (b"/usr", b"/proc", b"/", b"/tmp"):
    attempt(f"remount {path} writable", passes_the_check, 165, b"none", path + b"/no-such-folder", None, 0x20, 0)
    attempt(f"unmount {path}", passes_the_check, 166, path + b"/no-such-folder", 2)
attempt("open_tree", passes_the_check, 428, -100, b"/", 1)
attempt("move_mount", passes_the_check, 429, -100, b"/nowhere", -100, b"/nowhere", 0)
attempt("fsopen", passes_the_check, 430, b"tmpfs", 0)
attempt("fsmount", passes_the_check, 432, -1, 0, 0)
attempt("mount_setattr", passes_the_check, 442, -100, b"/nowhere", 0, bytes(32), 32)
attempt("pivot_root", passes_the_check, 155, b"/nowhere", b"/nowhere")
""",
    ),
    Attack(
        name="unmount_what_hides_the_server",
        code="""
if TARGET["isolated"]:  # where nothing isolates, this would harm the machine
    for path in (b"/proc", b"/tmp", b"/dev/shm", b"/dev", os.getcwd().encode(), b"/usr", b"/"):
        for flags in (0, 2, 8):
            attempt(f"unmount {path}", syscall, 166, path, flags)
        attempt(f"remount {path}", syscall, 165, b"none", path, None, 0x20, 0)
        attempt(f"cover {path}", syscall, 165, b"none", path, b"tmpfs", 0, 0)
""",
    ),
    Attack(
        name="chroot",
        code="""
os.mkdir("inner")
def escape():
    outside = os.open("/", os.O_RDONLY)
    os.chroot("inner")
    os.fchdir(outside)
    for _ in range(64):
        os.chdir("..")
    os.chroot(".")
    return found([name for name in os.listdir(os.path.dirname(TARGET["canary_file"]))])
attempt("chroot", os.chroot, "inner")
attempt("the way out of a chroot", escape)
def above():
    here = os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(64):
        here = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here)
    return found(os.path.basename(TARGET["folder_name"]) in os.listdir(here) and "above the root")
attempt("above the root", above)
""",
    ),
    Attack(
        name="rare_system_calls",
        code="""
CALLS = {
    "bpf": (321, 0, bytes(128), 128), "perf_event_open": (298, bytes(128), 0, -1, -1, 0),
    "io_uring_setup": (425, 4, bytes(120)),
    "io_uring_register": (427, -1, 0, 0, 0), "userfaultfd": (323, 0), "kexec_load": (246, 0, 0, 0, 0xFFFF),
    "init_module": (175, 0, 0, b""), "finit_module": (313, -1, b"", 0), "delete_module": (176, b"no-such-module", 0),
    "swapon": (167, b"/nowhere", 0), "swapoff": (168, b"/nowhere"), "reboot": (169, 1, 2, 3, 0), "iopl": (172, 3),
    "ioperm": (173, 0x80, 1, 1), "acct": (163, b"/nowhere"), "quotactl": (179, 0, b"/nowhere", 0, 0),
    "fanotify_init": (300, 0, 0), "pidfd_getfd": (438, -1, 0, 0), "sethostname": (170, b"x" * 65, 65),
    "setdomainname": (171, b"x" * 65, 65), "settimeofday": (164, 1, 0), "clock_settime": (227, 0, 1), "keyctl": (250, 0, -3, 0),
    "move_pages of a victim": (279, TARGET["victim_pid"], 0, 0, 0, 0, 0),
    "migrate_pages of a victim": (256, TARGET["victim_pid"], 8, 0, 0),
}
for name, call in CALLS.items():
    attempt(name, passes_the_check, *call)
""",
        reached_in_tier_d=("bpf", "keyctl"),
    ),
    Attack(
        name="system_calls_of_the_other_abi",
        code="""
import mmap
def run(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
def unshare_by_int80():
    # push rbx; mov eax, 310; mov ebx, CLONE_NEWUSER; int 0x80; pop rbx; ret
    result = run(bytes.fromhex("53 b8 36010000 bb 00000010 cd80 5b c3"))
    if result != 0:
        raise OSError(-result, os.strerror(-result))
    return "a user namespace"
attempt("unshare by int 0x80", unshare_by_int80)
for name, number, argument in (("unshare", 272, 0x10000000), ("bpf", 321, 0), ("userfaultfd", 323, 0)):
    attempt(f"x32 {name}", passes_the_check, 0x40000000 | number, argument, 0, 0)
""",
    ),
    Attack(
        name="limits_raised",
        code="""
import resource
for name in ("CPU", "DATA", "FSIZE", "NOFILE", "CORE", "STACK", "AS", "MEMLOCK", "NICE", "RTPRIO", "MSGQUEUE", "SIGPENDING"):
    number = getattr(resource, "RLIMIT_" + name)
    soft, hard = resource.getrlimit(number)
    if hard != resource.RLIM_INFINITY:
        attempt(f"raise {name}", resource.setrlimit, number, (hard + 1, hard + 1))
    elif name in ("CPU", "FSIZE", "NOFILE", "CORE", "MEMLOCK"):
        say(f"reached: {name} has no limit")
""",
    ),
    Attack(
        name="priorities",
        code="""
attempt("nice", os.nice, -5)
attempt("real time", os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))
attempt("real time input and output", syscall, 251, 1, 0, (1 << 13) | 0)
attempt("deadline", syscall, 314, 0, struct.pack("=IIQiIQQQ", 48, 6, 0, 0, 0, 10**6, 10**7, 10**7), 0)
def adjust():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    return "never killed for memory"
attempt("oom score", adjust)
""",
    ),
    Attack(
        name="limits_and_priorities_of_others",
        code="""
import resource
def change(pid):
    resource.prlimit(pid, resource.RLIMIT_CPU, resource.prlimit(pid, resource.RLIMIT_CPU))  # to what it is
    return "limit set"
for name in ("victim_pid", "server_pid"):
    pid = TARGET[name]
    attempt(f"limit of {name}", change, pid)
    attempt(f"priority of {name}", lambda: os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid)))
    attempt(f"affinity of {name}", lambda: os.sched_setaffinity(pid, os.sched_getaffinity(pid)))
    attempt(f"scheduler of {name}", lambda: os.sched_setscheduler(pid, os.sched_getscheduler(pid), os.sched_param(0)))
    attempt(f"priority of input and output of {name}", syscall, 251, 1, pid, 2 << 13 | 4)
if os.getpid() > 1000:  # where it sees the machine's processes
    attempt("priority of a whole user", os.setpriority, os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0))
""",
        reached_in_tier_d=("limit of victim_pid", "priority of server_pid", "affinity of server_pid"),
    ),
    Attack(
        name="proc_and_sys",
        code="""
for path in ("kernel/core_pattern", "kernel/modprobe", "kernel/hostname", "kernel/randomize_va_space", "vm/drop_caches",
             "vm/overcommit_memory", "kernel/ns_last_pid", "kernel/pid_max", "kernel/threads-max", "fs/binfmt_misc/register",
             "fs/suid_dumpable", "kernel/sysrq", "kernel/domainname", "net/ipv4/ip_forward", "kernel/shmmax"):
    attempt(f"open /proc/sys/{path} to write", os.open, f"/proc/sys/{path}", os.O_WRONLY)
for path in ("/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/acpi", "/proc/scsi", "/proc/mtrr"):
    attempt(f"open {path} to write", os.open, path, os.O_WRONLY)
for path in ("/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled",
             "/sys/kernel/profiling",
             "/sys/fs/cgroup/memory/release_agent", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs",
             "/sys/fs/cgroup/pids/cgroup.procs", "/sys/fs/cgroup/unified/cgroup.procs"):
    attempt(f"open {path} to write", os.open, path, os.O_WRONLY)
for name in ("oom_score_adj", "loginuid", "uid_map", "gid_map", "setgroups", "attr/current", "timens_offsets"):
    if name in ("uid_map", "gid_map"):
        attempt(f"write {name}", lambda: os.write(os.open(f"/proc/self/{name}", os.O_WRONLY), b"0 0 4294967295"))
""",
    ),
    Attack(
        name="terminals",
        code="""
import fcntl
TIOCSTI, TIOCLINUX, TIOCSCTTY = 0x5412, 0x541C, 0x540E
for descriptor in range(3):
    for request, argument in ((TIOCSTI, b"x"), (TIOCLINUX, bytes([3])), (TIOCSCTTY, 0)):
        attempt(f"request {request:#x} on {descriptor}", fcntl.ioctl, descriptor, request, argument)
attempt("controlling terminal", os.open, "/dev/tty", os.O_RDWR)
attempt("console", os.open, "/dev/console", os.O_RDWR | os.O_NOCTTY)
for number in range(4):
    attempt(f"terminal of somebody {number}", os.open, f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY)
""",
    ),
    Attack(
        name="signals_to_others",
        code="""
harmless = TARGET["isolated"] and os.getpid() < 1000
attempt("signal to a victim", os.kill, TARGET["victim_pid"], 0)
attempt("signal to the server", os.kill, TARGET["server_pid"], 0)
own = os.getpid()
def others():
    seen = []
    for pid in range(2, 4096):
        try:
            os.kill(pid, 0)
        except OSError:
            continue
        if pid not in (own, os.getpid()):
            seen.append(pid)
    return found(seen)
attempt("other processes", others)
attempt("pidfd of a victim", syscall, 434, TARGET["victim_pid"], 0)
if harmless:
    for number in (0, 9, 15, 19):
        attempt(f"signal {number} to a victim", os.kill, TARGET["victim_pid"], number)
        attempt(f"signal {number} to the server", os.kill, TARGET["server_pid"], number)
    for number in (1, 2, 3, 9, 10, 12, 15, 17, 19, 20, 34):
        try:
            os.kill(1, number)  # init is deaf to what comes from inside
        except PermissionError as error:
            say(f"refused: {number} to init - {error}")
""",
        reached_in_tier_d=("signal to a victim", "signal to the server", "pidfd of a victim"),
    ),
    Attack(
        name="kill_everybody",
        code="""
if TARGET["isolated"] and len([name for name in os.listdir("/proc") if name.isdigit()]) < 10:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):  # the caller is spared
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            pass
""",
    ),
    Attack(
        name="stop_the_parent",
        code="""
parent = os.getppid() or 1  # 0: it is outside of this namespace
if TARGET["isolated"]:
    for number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGKILL):
        try:
            os.kill(parent, number)
        except OSError as error:
            say(f"refused: {number!r} to the parent - {error}")
time.sleep(0.1)
""",
    ),
    Attack(
        name="more_restrictions_do_not_lift_any",
        code="""
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
program = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000))  # a filter that allows everything
try:
    syscall(317, 1, 0, struct.pack("=HxxxxxxQ", 1, ctypes.addressof(program)))
except OSError as error:
    say(f"refused: a filter of our own - {error}")
def landlock():
    ruleset = syscall(LANDLOCK_CREATE_RULESET, struct.pack("=Q", 1 << 2), 8, 0)
    syscall(LANDLOCK_ADD_RULE, ruleset, 1, struct.pack("=Qi", 1 << 2, os.open("/", os.O_PATH)), 0)
    syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)
try:
    landlock()
except OSError as error:
    say(f"refused: a layer of our own - {error}")
attempt("seccomp off", syscall, 157, 22, 0, 0, 0, 0)
attempt("new privileges", syscall, 157, 38, 0, 0, 0, 0)
attempt("canary file", lambda: open(TARGET["canary_file"], "rb").read(10))
attempt("user namespace", syscall, 272, 0x10000000)
""",
        reached_in_tier_d=("canary file",),
    ),
    Attack(
        name="personality",
        code="""
attempt("32-bit personality and a new namespace", lambda: (syscall(135, 8), syscall(272, 0x10000000)))
attempt("map of page zero", lambda: (syscall(135, 0x0100000), passes_the_check(9, 0, 4096, 3, 0x32, -1, 0)))
""",
    ),
]
