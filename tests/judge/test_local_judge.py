"""A real judge, started and stopped as a run does it."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import ConfigError, JudgeUnavailableError
from agentrl.judge import local
from agentrl.judge.client import JudgeClient
from agentrl.judge.local import LocalJudge
from agentrl.types import Deadline
from code_judge_server.schemas import VerdictStatus
from tests.processes import still_running
from tests.runners.run_process import wait_until

SECTION = JudgeSection(min_isolation="D", max_wall_time_s=1.0, max_memory_mb=256, num_slots=3)


@pytest.fixture(autouse=True)
def without_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let judges start in half the time: their warm interpreters import nothing."""
    command = LocalJudge._command
    monkeypatch.setattr(LocalJudge, "_command", lambda self: [*command(self), "--preloads", '{"sympy": [], "sci": []}'])


def is_listening(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(60)
        return probe.connect_ex((host, port)) == 0


def process_of(judge: LocalJudge) -> psutil.Process:
    """Return the server that runs now."""
    assert judge._process is not None
    return psutil.Process(judge._process.pid)


async def test_a_local_judge_takes_the_limits_of_the_run_and_none_of_another_judge_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CODE_JUDGE_MAX_MEMORY_MB", "nonsense")
    with LocalJudge(SECTION) as judge:
        url = f"http://{judge.host}:{judge.port}"
        client = JudgeClient([url], token=None, concurrency=2, batch_size=8, batch_timeout_s=30.0)
        await client.start()
        (health,) = await client.check(timeout_s=60)
        assert health.num_slots == 3
        assert (health.max_limits.wall_time_s, health.max_limits.cpu_time_s) == (1.0, 0.5)
        assert health.max_limits.memory_bytes == 256 * 1024**2
        verdict = await client.run("import time; time.sleep(30)", deadline=Deadline.after(60))
        assert verdict.status is VerdictStatus.TIME_LIMIT_EXCEEDED
        await client.aclose()


def test_a_tier_that_the_machine_cannot_give_is_a_config_error_that_says_what_to_name() -> None:
    program = textwrap.dedent("""
        from agentrl.config.schema.run import JudgeSection
        from agentrl.errors import ConfigError, JudgeUnavailableError
        from agentrl.judge.local import LocalJudge
        try:
            with LocalJudge(JudgeSection(min_isolation="A")):
                print("started")
        except ConfigError as error:
            print(error)
    """)
    # Root is made as powerless as any other user, and what another user is on cannot reach tier A.
    without_rights = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*without_rights, sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200).stdout
    assert "`judge.min_isolation` is `A`; set it to a weaker tier to allow that" in said


async def test_a_judge_with_a_token_asks_for_it_and_stops_at_the_end_even_if_the_run_fails() -> None:
    judge = LocalJudge(SECTION, host="127.0.0.5", token="s3cret")
    with contextlib.suppress(KeyError), judge:
        assert judge.host == "127.0.0.5"
        for token, refused in (("s3cret", False), ("wrong", True)):
            client = JudgeClient([judge.url], token=token, concurrency=1, batch_size=1, batch_timeout_s=30.0)
            await client.start()
            with pytest.raises(JudgeUnavailableError, match="token_env") if refused else contextlib.nullcontext():
                await client.check(timeout_s=60)
            await client.aclose()
        assert is_listening(judge.host, judge.port)
        raise KeyError
    assert not is_listening(judge.host, judge.port)


def test_a_setting_that_the_judge_refuses_is_a_config_error_with_its_words() -> None:
    judge = LocalJudge(JudgeSection(min_isolation="D", max_memory_mb=1))
    with pytest.raises(ConfigError, match="memory") as refusal, judge:
        pass
    assert "min_isolation" not in str(refusal.value)


def test_a_judge_that_cannot_even_import_says_the_cause_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fastapi.py").write_text("def load():\n    raise ImportError('no libssl here')\n\n\nload()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ConfigError) as refusal, LocalJudge(SECTION):
        pass
    assert str(refusal.value) == (
        "judge: it ended with code 1 instead of listening. Its output: ImportError: no libssl here"
    )


def test_it_dies_with_a_parent_that_is_killed() -> None:
    program = textwrap.dedent("""
        import time
        from agentrl.config.schema.run import JudgeSection
        from agentrl.judge.local import LocalJudge
        with LocalJudge(JudgeSection(min_isolation="D")) as judge:
            print(judge.port, flush=True)
            time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        port = int(parent.stdout.readline())
        assert is_listening("127.0.0.1", port)
        os.kill(parent.pid, signal.SIGKILL)
    give_up_at = time.monotonic() + 60
    while is_listening("127.0.0.1", port):
        assert time.monotonic() < give_up_at, "the judge outlived its parent"
        time.sleep(0.1)


@pytest.mark.slow
async def test_a_judge_that_is_killed_is_started_again_at_the_same_address() -> None:
    with LocalJudge(SECTION.model_copy(update={"max_wall_time_s": 60.0}), host="127.0.0.6") as judge:
        url = judge.url
        client = JudgeClient([url], token=None, concurrency=2, batch_size=8, batch_timeout_s=30.0)
        await client.start()
        running = asyncio.create_task(client.run("print(6 * 7)", deadline=Deadline.after(100)))
        os.kill(process_of(judge).pid, signal.SIGKILL)
        assert (await running).stdout == "42\n", "the call that was there when it died"
        assert (await client.run("print(1)", deadline=Deadline.after(100))).stdout == "1\n"
        assert judge.url == url
        restarted = process_of(judge)
        await client.aclose()
    assert not is_listening(judge.host, judge.port)
    assert not still_running([psutil.Process(pid) for pid in [restarted.pid] if psutil.pid_exists(pid)])


def test_a_judge_that_is_killed_before_it_listens_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    monkeypatch.setattr(LocalJudge, "_command", lambda self: killed)
    with pytest.raises(JudgeUnavailableError, match="killed by signal 9 before it listened"), LocalJudge(SECTION):
        pass


def test_a_judge_that_dies_again_and_again_is_started_again_until_the_run_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local, "_FIRST_BACK_OFF_S", 0.001)
    with LocalJudge(SECTION) as judge:
        monkeypatch.setattr(sys, "executable", "/bin/false")  # what is started from now on ends at once
        os.kill(process_of(judge).pid, signal.SIGKILL)
        assert wait_until(lambda: caplog.text.count("died with code 1") >= 3)
    assert "died with code -9" in caplog.text
    assert not judge._watcher.is_alive()
