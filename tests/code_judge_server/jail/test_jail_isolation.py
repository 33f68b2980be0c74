"""Isolation of jobs in tiers A and B; `test_jail_ordinary_user` runs this file again without root's rights."""

import errno
import json
import os
import socket
import sys
from collections.abc import Iterator

import pytest
from jail_driver import MIB, Jail, jail
from jail_tiers import NAMESPACE_TIERS

from code_judge_server.schemas import IsolationTier

TRY_CALLS = """
import ctypes, errno, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    return errno.errorcode.get(ctypes.get_errno(), 'done') if result < 0 else 'done'
"""


@pytest.fixture(scope="module", params=NAMESPACE_TIERS)
def started(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jail(request.param, num_slots=2) as running:
        yield running


def test_a_job_is_process_2_below_an_init_that_is_not_python(started: Jail):
    code = "import os; print(os.getpid(), os.getppid(), sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))"
    assert started.run_python(code).text == "2 0 [1, 2]"
    assert started.run_python("print(open('/proc/1/comm').read())").text != "python"


def test_every_job_has_namespaces_of_its_own(started: Jail):
    code = "import os; print([os.readlink(f'/proc/self/ns/{n}') for n in ('pid', 'mnt', 'ipc', 'uts')])"
    names = [json.loads(started.run_python(code).text.replace("'", '"')) for _ in range(2)]
    own_namespaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "mnt", "ipc", "uts")]
    assert all(name not in own_namespaces for name in [*names[0], *names[1]])
    # Numbers of namespaces that are gone are used again: two that live at once differ.
    slots = [started.slot(number) for number in range(2)]
    assert slots[0].pid != slots[1].pid


def test_slots_do_not_share_a_network(started: Jail):
    code = "import os; print(os.readlink('/proc/self/ns/net'))"
    seen = {started.run_python(code, slot=number).text for number in range(2)}
    assert len(seen | {os.readlink("/proc/self/ns/net")}) == 3


def test_a_job_has_no_rights(started: Jail):
    code = "print(open('/proc/self/status').read())"
    for ran in (started.run_python(code), started.run(["/bin/cat", "/proc/self/status"])):
        status = dict(line.split(":\t", 1) for line in ran.text.splitlines())
        assert [status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")] == ["0" * 16] * 5
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert not status["Groups"].strip() or os.geteuid() != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user has one user id only")
def test_each_slot_has_a_user_of_its_own(started: Jail):
    first = started.plan.first_uid
    assert first is not None
    assert first >= 2_000_000_000
    users = [
        started.run_python("import os; print(os.getresuid(), os.getresgid())", slot=slot).text for slot in range(2)
    ]
    assert users == [f"{(uid, uid, uid)} {(uid, uid, uid)}" for uid in (first, first + 1)]


def test_a_job_has_three_descriptors(started: Jail):
    # `listdir` itself opens the fourth.
    assert started.run_python("import os; print(os.listdir('/proc/self/fd'))").text == "['0', '1', '2', '3']"
    assert started.run(["/bin/ls", "/proc/self/fd"]).text.split() == ["0", "1", "2", "3"]


def test_the_environment_is_the_jails_own(started: Jail):
    ran = started.run_python(
        "import os; print(sorted(os.environ)); print(open('/proc/self/environ').read().count('='))"
    )
    names, count = ran.text.splitlines()
    expected = [
        "HOME",
        "LANG",
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "PATH",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONHASHSEED",
        "TMPDIR",
        "USER",
    ]
    assert json.loads(names.replace("'", '"')) == expected
    assert int(count) == len(expected)


def test_nothing_of_the_machine_is_in_the_file_system(started: Jail):
    listing = started.run_python("import os; print(sorted(os.listdir('/')), sorted(os.listdir('/etc')))").text
    assert "home" not in listing
    assert "shadow" not in listing
    closed = [
        "/etc/shadow",
        "/proc/stat",
        "/proc/kcore",
        "/proc/sys",
        "/sys",
        "/home",
        os.path.abspath(__file__),
        "/tmp/.X11-unix",
    ]
    code = f"import os; print([path for path in {closed} if os.path.lexists(path)])"
    assert started.run_python(code).text == "[]"


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("tier", NAMESPACE_TIERS)
def test_a_job_reads_of_the_memory_and_the_processors_that_are_its_own(tier: IsolationTier, compiled: bool):
    code = """
import os, psutil
print(psutil.virtual_memory().total, psutil.virtual_memory().available, psutil.swap_memory().total)
print([line.split()[-1] for line in open('/proc/cpuinfo') if line.startswith('processor')], os.cpu_count())
print(sorted(name for name in os.listdir('/proc') if not name.isdigit()))
for name in ('meminfo', 'cpuinfo'):
    try:
        os.chmod(f'/proc/{name}', 0o666)
        open(f'/proc/{name}', 'w')
    except OSError as error:
        print(error.errno)
"""
    affinity = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(affinity)})
    try:
        with jail(tier, fast_path=compiled) as running:
            limits = [64 * MIB, 100 * MIB]
            texts = [running.run_python(code, limits={"memory_bytes": limit}).text for limit in limits]
    finally:
        os.sched_setaffinity(0, affinity)
    assert texts == [
        f"{limit} {limit} 0\n['{max(affinity)}'] 1\n['self', 'thread-self']\n{errno.EROFS}\n{errno.EROFS}"
        for limit in limits
    ]


def test_only_the_work_folder_and_the_temporary_ones_can_be_written(started: Jail):
    code = """
import os, tempfile
for folder in ('/sandbox', '/tmp', '/dev/shm', '/', '/etc', '/usr', '/dev', '/proc', '/var/tmp', os.path.dirname(os.__file__)):
    try:
        open(f'{folder}/written', 'w').close()
        print(folder, 'open')
    except OSError as error:
        print(folder, 'closed')
"""
    words = started.run_python(code).text.split()
    assert dict(zip(words[::2], words[1::2], strict=True)) | {"/": "closed"} == {
        "/sandbox": "open",
        "/tmp": "open",
        "/dev/shm": "open",
        **dict.fromkeys(["/", "/etc", "/usr", "/dev", "/proc", "/var/tmp", os.path.dirname(os.__file__)], "closed"),
    }


def test_nothing_of_a_job_is_left_for_the_next(started: Jail):
    leave = """
import os, subprocess
for folder in ('/sandbox', '/tmp', '/dev/shm'):
    open(f'{folder}/left', 'w').write('x')
subprocess.Popen(['/bin/sleep', '1000'], start_new_session=True)
"""
    assert started.run_python(leave).ended["exit_code"] == 0
    look = """
import os
print([os.listdir(folder) for folder in ('/sandbox', '/tmp', '/dev/shm')], len([n for n in os.listdir('/proc') if n.isdigit()]))
"""
    assert started.run_python(look).text == f"[['main.py'], {started.shown_in_tmp()}, []] 2"


def test_no_socket_can_observe_or_leave_the_network(started: Jail):
    code = """
import socket
for family in range(50):
    try:
        socket.socket(family, socket.SOCK_DGRAM if family == 1 else socket.SOCK_RAW)
        print(family, 'open')
    except OSError as error:
        print(family, error.errno)
"""
    words = started.run_python(code).text.split()
    results = dict(zip(words[::2], words[1::2], strict=True))
    assert results.pop("1") == "open"  # AF_UNIX
    raw = {results.pop(str(family.value)) for family in (socket.AF_INET, socket.AF_INET6)}
    assert raw == {str(errno.EPERM)}
    assert set(results.values()) == {str(errno.EAFNOSUPPORT)}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("unshare", "0x10000000"),
        ("unshare", "0x20000"),
        ("mount", "b'none', b'/tmp', b'tmpfs', 0, None"),
        ("umount2", "b'/proc', 2"),
        ("setns", "os.pidfd_open(1), 0x20000"),
        ("setns", "os.open('/proc/self/ns/mnt', 0), 0"),
        ("setns", "os.open('/proc/self/ns/net', 0), 0"),
        ("setns", "os.open('/proc/self/ns/pid', 0), 0"),
        ("ptrace", "0, 0, 0, 0"),
        ("chroot", "b'/tmp'"),
        ("process_vm_readv", "1, None, 0, None, 0, 0"),
        ("syscall", "321, 0, None, 0"),  # bpf
        ("syscall", "425, 1, None"),  # io_uring_setup
        ("syscall", "248, None, None, None, 0, 0"),  # add_key
        ("syscall", "250, 0, 0, 0, 0, 0"),  # keyctl
        ("syscall", "298, None, 0, -1, -1, 0"),  # perf_event_open
        ("syscall", "323, 0"),  # userfaultfd
        ("syscall", "56, 0x10000011, 0, 0, 0, 0"),  # clone with CLONE_NEWUSER
        ("syscall", "304, 0, None, 0"),  # open_by_handle_at
        ("personality", "0x0040000"),
        ("sethostname", "b'x', 1"),
    ],
)
def test_calls_that_reach_out_of_a_job_are_refused(started: Jail, name: str, arguments: str):
    ran = started.run_python(f"{TRY_CALLS}\nprint(call({name!r}, {arguments}))")
    assert ran.text in ("EPERM", "ENOSYS"), ran


def test_clone3_does_not_exist_so_that_its_flags_need_no_check(started: Jail):
    assert started.run_python(f"{TRY_CALLS}\nprint(call('syscall', 435, None, 0))").text == "ENOSYS"


def test_a_system_call_of_another_processor_kills(started: Jail):
    code = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=7)
page.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # mov eax, getpid of i386; int 0x80; ret
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert started.run_python(code).ended["signal"] == 31


def test_the_init_cannot_be_killed_or_read_by_its_job(started: Jail):
    code = """
import os, signal
for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
    try:
        os.kill(1, number)
    except PermissionError:
        pass
for name in ('mem', 'environ', 'maps', 'exe', 'fd/0'):
    try:
        print(name, os.readlink(f'/proc/1/{name}') if name == 'fd/0' else open(f'/proc/1/{name}', 'rb').read(10))
    except OSError:
        pass
print('alive')
"""
    assert started.run_python(code).text == "alive"


def test_a_job_cannot_signal_processes_outside(started: Jail):
    code = f"import os\ntry:\n    os.kill({os.getpid()}, 0)\nexcept OSError as error:\n    print(error.errno)"
    assert started.run_python(code).text == str(errno.ESRCH)
    assert started.run_python("import os, signal; os.kill(-1, signal.SIGKILL)").ended["exit_code"] in (0, 1)


def test_asyncio_uses_the_selector_allowed_to_its_user(started: Jail):
    code = """
import asyncio, selectors
async def main():
    process = await asyncio.create_subprocess_exec('echo', 'heard', stdout=asyncio.subprocess.PIPE)
    heard, _ = await process.communicate()
    return heard.decode().strip(), selectors.DefaultSelector.__name__
print(*asyncio.run(main()))
"""
    selector = "EpollSelector" if os.geteuid() == 0 else "PollSelector"
    for ran in (
        started.run_python(code),
        started.run([sys.executable, "other.py"], files={"other.py": code.encode()}),
    ):
        assert ran.text == f"heard {selector}", ran


def test_limits_cannot_be_raised(started: Jail):
    code = """
import resource
for limit in ('CPU', 'FSIZE', 'NOFILE', 'CORE'):
    try:
        resource.setrlimit(getattr(resource, f'RLIMIT_{limit}'), (resource.RLIM_INFINITY,) * 2)
        print('raised', limit)
    except ValueError:
        pass
"""
    assert started.run_python(code).text == ""
