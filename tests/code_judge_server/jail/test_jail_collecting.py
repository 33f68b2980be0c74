"""Files brought back from a job: regular ones only, whatever the program put in their place."""

from collections.abc import Iterator

import pytest
from jail_driver import Jail, jail
from jail_tiers import EVERY_TIER

from code_judge_server.schemas import IsolationTier


@pytest.fixture(scope="module", params=EVERY_TIER)
def started(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jail(request.param) as running:
        if running.plan.tier is IsolationTier.C and running.run_python("pass").ended["exit_code"] != 0:
            pytest.skip("tier C does not work for this user")
        yield running


def test_regular_files_come_back_in_the_order_that_was_asked(started: Jail):
    code = "import os; os.makedirs('a/b'); open('a/b/c', 'w').write('deep'); open('x', 'wb').write(bytes(70000))"
    ran = started.run_python(code, collect=["a/b/c", "none", "x"], collect_bytes=100_000)
    assert ran.files == {"a/b/c": b"deep", "x": bytes(70000)}


def test_files_that_do_not_fit_are_left_out_and_reported(started: Jail):
    code = "open('large', 'wb').write(bytes(1000)); open('small', 'w').write('x')"
    ran = started.run_python(code, collect=["large", "small", "none"], collect_bytes=999)
    assert ran.files == {"small": b"x"}
    assert ran.ended["collected"] == [[0, None], [1, 1]]


def test_no_link_device_pipe_or_socket_is_followed_or_opened(started: Jail):
    code = """
import os, socket
os.symlink('/etc/passwd', 'link')
os.symlink('/etc', 'folder')
os.symlink('/proc/1/environ', 'magic')
os.mkfifo('pipe')
os.mkdir('plain')
open('here', 'w').write('x')
os.symlink('here', 'inside')
"""
    paths = ["link", "folder/passwd", "magic", "pipe", "plain", "inside", "../etc/passwd", "/etc/passwd", "here"]
    assert started.run_python(code, collect=paths).files == {"here": b"x"}


def test_no_process_of_the_job_runs_while_files_are_copied(started: Jail):
    code = """
import os, time
open('x', 'w').write('final')
if os.fork() == 0:
    os.setsid()
    while True:
        open('x', 'w').write('changed' * 1000)
        open('y', 'a').write('y')
"""
    ran = started.run_python(code, collect=["x", "y"], collect_bytes=1 << 24)
    assert ran.ended["exit_code"] == 0
    assert set(ran.files) <= {"x", "y"}
    assert started.run_python("print('next')").text == "next"


def test_nothing_comes_back_from_a_killed_job(started: Jail):
    code = "import time; open('x', 'w').write('x'); time.sleep(100)"
    assert started.run_python(code, collect=["x"], kill_after_s=0.3).files == {}


def test_a_sparse_giant_is_left_out(started: Jail):
    code = "import os; fd = os.open('x', os.O_CREAT | os.O_RDWR); os.ftruncate(fd, 60 << 20)"
    assert started.run_python(code, collect=["x"], collect_bytes=1 << 20).files == {}
