"""Kernel memory of a job that no control group counts, and its access to files that others open too."""

from collections.abc import Iterator

import pytest
from jail_driver import Jail, jail
from jail_tiers import EVERY_TIER

from code_judge_server.schemas import IsolationTier


@pytest.fixture(scope="module", params=EVERY_TIER)
def started(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jail(request.param, preloads={"bare": ("fcntl",)}) as running:
        yield running


@pytest.fixture(scope="module", params=[tier for tier in EVERY_TIER if tier is not IsolationTier.A])
def uncounted(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jail(request.param, preloads={"bare": ("fcntl",)}) as running:
        yield running


def test_the_buffers_of_sockets_keep_their_size_where_nothing_counts_them(uncounted: Jail):
    code = """
import socket
a, b = socket.socketpair()
before = a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
for option in (socket.SO_SNDBUF, socket.SO_RCVBUF, 32, 33):
    a.setsockopt(socket.SOL_SOCKET, option, 1 << 22)
a.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
print(a.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before, a.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED))
"""
    assert uncounted.run_python(code).text == "True 1"


def test_pipes_hold_no_pages_of_others_and_do_not_grow_where_nothing_counts_them(uncounted: Jail):
    code = """
import ctypes, errno, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
reading, writing = os.pipe()
for command in (fcntl.F_SETPIPE_SZ, (1 << 32) + fcntl.F_SETPIPE_SZ):
    ctypes.set_errno(0)
    print(libc.syscall(72, writing, ctypes.c_long(command), ctypes.c_long(1 << 20)), errno.errorcode[ctypes.get_errno()])
for call in (libc.vmsplice, libc.tee, libc.splice):
    ctypes.set_errno(0)
    print(call(writing, None, 0, 0, 0, 0), errno.errorcode[ctypes.get_errno()])
print(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ) <= 65536)
"""
    ran = uncounted.run_python(code)
    assert ran.text.split() == ["-1", "EPERM"] * 2 + ["-1", "ENOSYS"] * 3 + ["True"], ran.stderr


def test_an_uncounted_job_has_few_descriptors(uncounted: Jail):
    code = """
import os
held = []
try:
    while True:
        held.append(os.pipe())
except OSError:
    print(len(held))
"""
    assert int(uncounted.run_python(code).text) <= 127


def test_no_lease_or_watch_of_a_file_is_had(started: Jail):
    code = """
import ctypes, errno, fcntl, os
libc = ctypes.CDLL(None, use_errno=True)
file, folder = os.open('mine', os.O_CREAT | os.O_RDONLY), os.open('.', os.O_RDONLY)
for target, command, value in ((file, fcntl.F_SETLEASE, fcntl.F_WRLCK), (folder, fcntl.F_NOTIFY, fcntl.DN_MODIFY)):
    for number in (command, command + (1 << 32)):
        ctypes.set_errno(0)
        print(libc.syscall(72, target, ctypes.c_long(number), ctypes.c_long(value)), errno.errorcode[ctypes.get_errno()])
print(libc.inotify_init(), libc.inotify_init1(0))
"""
    ran = started.run_python(code)
    assert ran.text.split() == ["-1", "EPERM"] * 4 + ["-1", "-1"], ran.stderr


def test_ordinary_operations_on_descriptors_still_work(started: Jail):
    code = """
import fcntl, os
file = os.open('mine', os.O_CREAT | os.O_RDWR)
fcntl.lockf(file, fcntl.LOCK_EX)
copy = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10)
fcntl.fcntl(copy, fcntl.F_SETFL, fcntl.fcntl(copy, fcntl.F_GETFL) | os.O_NONBLOCK)
os.sync()
print(copy >= 10, fcntl.fcntl(copy, fcntl.F_GETFD))
"""
    ran = started.run_python(code)
    assert ran.text == "True 1", ran.stderr


def test_signals_that_wait_are_few(started: Jail):
    code = """
import ctypes, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
libc = ctypes.CDLL(None)
queued = 0
while queued < 100_000 and libc.sigqueue(__import__('os').getpid(), int(signal.SIGRTMIN), None) == 0:
    queued += 1
print(queued)
"""
    assert 0 < int(started.run_python(code).text) <= 256
