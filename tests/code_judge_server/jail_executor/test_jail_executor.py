"""Jobs in the jail as the executor sees them: their endings, and their leftovers. All of a tier run in one executor."""

import asyncio
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import pytest
import pytest_asyncio
from executor_jobs import (
    BEGUN,
    FOREVER,
    LIMITS,
    TIERS,
    launchers,
    python,
    run_all,
    started_executor,
    tier_or_skip,
    until_begun,
)
from judge_process import until

from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.sandbox import process_tree
from code_judge_server.sandbox.executor import Job
from code_judge_server.sandbox.outcome import Ending

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=TIERS)
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[JailExecutor]:
    async with started_executor(tier_or_skip(request.param)) as executor:
        yield executor


@pytest.mark.parametrize(
    ("code", "ending"),
    [
        ("while True: pass", Ending.CPU_TIME),
        ("import os\nfor _ in range(3): os.fork()\nwhile True: pass", Ending.CPU_TIME),
        ("import time; time.sleep(600)", Ending.WALL_TIME),
        ("import signal, time\nsignal.pthread_sigmask(0, range(1, 64))\ntime.sleep(600)", Ending.WALL_TIME),
        ("x = [bytearray(2**20) for _ in range(300)]\nimport time; time.sleep(30)", Ending.MEMORY),
        ("import os\nwhile True: os.write(1, b'x' * 1000)", Ending.OUTPUT),
        ("import os\nwhile True: os.write(2, b'x' * 1000)", Ending.OUTPUT),
        ("print('x' * 100_000)", Ending.OUTPUT),
        ("print('x' * 99_999)", Ending.EXITED),
        ("raise SystemExit(3)", Ending.EXITED),
        ("import os; os.abort()", Ending.EXITED),
    ],
)
async def test_the_exceeded_limit_is_the_ending(executor: JailExecutor, code: str, ending: Ending) -> None:
    outcome = await executor.execute(python(code, wall_time_s=0.5 if "sleep(600)" in code else 60))
    assert outcome.ending is ending, outcome
    assert len(outcome.stdout) <= LIMITS.output_bytes
    if ending is Ending.OUTPUT:
        assert outcome.stdout_cut or outcome.stderr_cut
    if ending is Ending.CPU_TIME:
        assert 0.35 < outcome.cpu_time_s < 1


async def test_a_fork_bomb_is_ended_and_harms_no_other_job(executor: JailExecutor) -> None:
    bomb = "import os, time\nfor _ in range(100):\n    if os.fork() == 0: time.sleep(600)\ntime.sleep(600)"
    bombed, honest = await run_all(executor, python(bomb, wall_time_s=1), python("print(sum(range(10)))"))
    assert bombed.ending is not Ending.EXITED or b"BlockingIOError" in bombed.stderr, bombed
    assert (honest.ending, honest.stdout) == (Ending.EXITED, b"45\n")


async def test_one_task_is_enough_for_a_program_that_starts_none(executor: JailExecutor) -> None:
    outcome = await executor.execute(python("import time; time.sleep(0.3); print('done')", max_tasks=1))
    assert (outcome.ending, outcome.stdout) == (Ending.EXITED, b"done\n")


async def test_processes_that_share_their_memory_are_not_charged_for_it_several_times(executor: JailExecutor) -> None:
    code = (
        "import os, time\nshared = bytearray(b'x' * 40 * 2**20)\n"
        "for _ in range(4):\n    if os.fork() == 0: time.sleep(0.5); os._exit(0)\n"
        "for _ in range(4): os.wait()\nprint('done')"
    )
    outcome = await executor.execute(python(code))
    assert (outcome.ending, outcome.stdout) == (Ending.EXITED, b"done\n")


async def test_exit_codes_and_signals_are_reported_unchanged(executor: JailExecutor) -> None:
    exited, aborted, killed = await run_all(
        executor,
        python("raise SystemExit(3)"),
        python("import os; os.abort()"),
        python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"),
    )
    assert (exited.exit_code, exited.signal) == (3, None)
    assert (aborted.exit_code, aborted.signal) == (None, signal.SIGABRT)
    assert (killed.exit_code, killed.signal) == (None, signal.SIGKILL)


async def test_input_files_and_output_go_through_whole(executor: JailExecutor) -> None:
    code = (
        "import sys\ndata = sys.stdin.buffer.read()\nprint(len(data), open('a/b.txt').read(), file=sys.stderr)\n"
        "import os\nos.mkdir('out')\nopen('out/x', 'wb').write(data[:10])\nos.symlink('/etc/passwd', 'out/link')\n"
    )
    stdin = bytes(range(256)) * 20_000
    outcome = await executor.execute(
        python(code, files={"a/b.txt": b"below"}, stdin=stdin, collect=("out/x", "out/link", "none"), collect_bytes=100)
    )
    assert (outcome.stderr, outcome.exit_code) == (b"5120000 below\n", 0)
    assert outcome.files == {"out/x": bytes(range(10))}
    assert not outcome.files_cut


async def test_files_that_do_not_fit_are_flagged(executor: JailExecutor) -> None:
    outcome = await executor.execute(
        python("open('large', 'w').write('x' * 101)", collect=("large", "none"), collect_bytes=100)
    )
    assert (dict(outcome.files), outcome.files_cut) == ({}, True)


async def test_a_command_runs_without_a_warm_interpreter(executor: JailExecutor) -> None:
    shell = Job(argv=("/bin/sh", "-c", "read x; echo $x; exit 7"), stdin=b"word\n", limits=LIMITS)
    echoed, cold = await run_all(executor, shell, python("print(__name__)", preload="not a set"))
    assert (echoed.stdout, echoed.exit_code) == (b"word\n", 7)
    assert (cold.stdout, cold.exit_code) == (b"__main__\n", 0)


async def test_left_processes_are_killed_and_the_output_is_kept(executor: JailExecutor) -> None:
    code = (
        "import os, time\nprint('parent', flush=True)\n"
        "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n    print('too late', flush=True)\n"
    )
    outcome = await executor.execute(python(code))
    assert (outcome.ending, outcome.exit_code, outcome.stdout) == (Ending.EXITED, 0, b"parent\n")


async def test_more_jobs_than_slots_wait_and_keep_their_own_outcomes(executor: JailExecutor) -> None:
    jobs = [python(f"print({number}, input())", stdin=str(number * 7).encode()) for number in range(40)]
    outcomes = await run_all(executor, *jobs)
    assert [outcome.stdout for outcome in outcomes] == [f"{number} {number * 7}\n".encode() for number in range(40)]


@contextmanager
def busy_machine(num_hogs: int) -> Iterator[None]:
    hogs = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(num_hogs)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


async def test_a_busy_machine_fails_no_honest_program(executor: JailExecutor) -> None:
    code = "import time\nwhile time.process_time() < 0.3: pass\nprint('done')"
    with busy_machine(6):
        outcome = await executor.execute(python(code, wall_time_s=100))
    assert (outcome.ending, outcome.stdout) == (Ending.EXITED, b"done\n")
    assert outcome.wall_time_s > outcome.cpu_time_s


async def test_sleepers_are_counted_and_workers_are_not(executor: JailExecutor) -> None:
    tasks = [
        asyncio.create_task(executor.execute(python(code, cpu_time_s=50, wall_time_s=50)))
        for code in (FOREVER, f"{BEGUN}while True: pass")
    ]
    await until_begun(2)
    await until(lambda: executor.load().num_asleep == 1, timeout_s=40)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_a_cancelled_job_is_killed_and_its_slot_runs_the_next(executor: JailExecutor) -> None:
    tasks = [asyncio.create_task(executor.execute(python(FOREVER))) for _ in range(2)]
    (launcher,) = launchers()
    num_rebuilt = executor.load().num_rebuilt_slots
    await until_begun(2)
    busy = len(process_tree.descendants(launcher, at_most=1000))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    outcomes = await run_all(executor, python("print(1)"), python("print(2)"))
    assert [outcome.stdout for outcome in outcomes] == [b"1\n", b"2\n"]
    assert len(process_tree.descendants(launcher, at_most=1000)) < busy
    assert executor.load().num_rebuilt_slots == num_rebuilt
