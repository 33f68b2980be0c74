"""The tier that a server takes, those it refuses, and its description when it is ready."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from judge_process import COMMAND, WITHOUT_MODULES

from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.preload_sets import preload_sets
from code_judge_server.schemas import IsolationTier
from code_judge_server.settings import Settings
from code_judge_server.tier_choice import choose_executor


@contextmanager
def announced(*arguments: str) -> Iterator[list[str]]:
    """Start a server, and yield the lines that it prints up to its limits."""
    command = [*COMMAND, "--port", "0", "--num-slots", "1", "--spare-slots", "0", *arguments]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line.rstrip("\n"))
                if line.split()[0] == "limits":
                    break
            yield lines
        finally:
            process.terminate()


def refusal(*arguments: str) -> str:
    """Start a server that must refuse, and return its message."""
    done = subprocess.run(
        [*COMMAND, "--port", "0", *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


PRELOADS = {"more": ["json", "xml.dom"], "sympy": [], "sci": []}


@pytest.fixture(scope="module")
def announcement() -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The lines of a server that may use every tier, and its health."""
    with announced("--require-isolation", "D", "--preloads", json.dumps(PRELOADS)) as lines:
        address = lines[0].removeprefix("listening on ")
        yield lines, httpx.get(f"{address}/v1/health", timeout=100).json()


def test_the_best_tier_is_used_although_the_weakest_is_permitted(
    announcement: tuple[list[str], dict[str, Any]],
) -> None:
    lines, health = announcement
    best = find_tier()
    assert health["isolation"] == best.tier
    assert [canary["name"] for canary in health["canaries"]] == [canary.name for canary in best.canaries]
    assert lines[1].startswith(f"  isolation  tier {best.tier}: ")
    page = "\n".join(lines)
    for canary in best.canaries:
        assert f"{'passed' if canary.passed else 'FAILED'}  {canary.name}" in page
    for word in ("slots", "preloads", "limits", "cpu 10 s", "memory 512 MiB"):
        assert word in page


def test_the_start_page_names_address_tier_canaries_slots_and_preload_sets(
    announcement: tuple[list[str], dict[str, Any]],
) -> None:
    (first, *lines), health = announcement
    assert first.startswith("listening on http://127.0.0.1:")
    page = {line[2:12].strip() or line.strip(): line[13:] for line in lines}
    assert page["isolation"].startswith(f"tier {health['isolation']}: ")
    for canary in health["canaries"]:
        words = f"{'passed' if canary['passed'] else 'FAILED'}  {canary['name']}"
        assert f"{words}: {canary['detail']}".removesuffix(": ") in page
    assert page["slots"] == "1, and 0 for while others sleep"
    sets = preload_sets(PRELOADS) if health["isolation"] != "D" else {}
    named = [f"{name} ({' '.join(modules)})" if modules else name for name, modules in sets.items()]
    assert page["preloads"] == (", ".join(named) or "none")


def test_a_path_in_a_folder_of_each_programs_own_is_refused_by_name() -> None:
    if find_tier(IsolationTier.B).tier is not IsolationTier.B:
        pytest.skip("this machine does not give tier B")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        said = refusal("--use-isolation", "B", "--read-only-paths", f'["{folder}"]')
    assert f"read_only_paths: `{folder}` is in /dev/shm" in said
    assert "Move it elsewhere" in said
    said = refusal("--use-isolation", "B", "--read-only-paths", '["/tmp"]')
    assert "read_only_paths: `/tmp` is in /tmp, which each program has of its own" in said


def test_an_interpreter_that_programs_could_not_see_is_named_with_the_way_out() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{folder}/env"], check=True)
        program = (
            "from code_judge_server.jail.probe import canary_job\n"
            "from code_judge_server.schemas import IsolationTier\n"
            "print(canary_job.run(IsolationTier.B))"
        )
        search_path = os.pathsep.join(filter(None, sys.path))
        command = [f"{folder}/env/bin/python", "-c", program]
        done = subprocess.run(command, env={"PYTHONPATH": search_path}, capture_output=True, text=True, check=True)
    assert f"interpreter: `{folder}/env" in done.stdout
    assert "Make the environment elsewhere" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["B", "C", "D"])
def test_a_weaker_tier_can_be_forced_for_comparison(tier: str) -> None:
    if find_tier(IsolationTier(tier)).tier != tier:
        pytest.skip(f"this machine does not give tier {tier}")
    with announced("--require-isolation", tier, "--use-isolation", tier, *WITHOUT_MODULES) as lines:
        address = lines[0].removeprefix("listening on ")
        program = {"id": "a", "code": "import sys\nprint(input())\nsys.exit(1 / 0)", "stdin": "in"}
        verdict = httpx.post(f"{address}/v1/submissions", json=program, timeout=100).json()
    assert (verdict["isolation"], verdict["stdout"], verdict["exit_code"]) == (tier, "in\n", 1)
    assert verdict["stderr"] == (
        'Traceback (most recent call last):\n  File "/sandbox/main.py", line 3, in <module>\n'
        "    sys.exit(1 / 0)\n             ~~^~~\nZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize("fast_path", [True, False])
def test_the_fast_path_is_a_setting(fast_path: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if (tier := find_tier(IsolationTier.B).tier) is not IsolationTier.B:
        pytest.skip("this machine does not give tier B")
    monkeypatch.setenv("CODE_JUDGE_FAST_PATH", str(fast_path))
    executor = choose_executor(Settings(num_slots=1, spare_slots=0, max_sessions=0, use_isolation=tier))
    assert isinstance(executor, JailExecutor)
    try:
        plan = executor._plan
        assert (plan.fast_path, plan.init is not None, plan.job_start is not None) == (fast_path,) * 3
        [canary] = [canary for canary in executor.canaries if canary.name == "compiled init"]
        assert (canary.passed, "fast_path is off" in canary.detail) == (fast_path, not fast_path)
    finally:
        asyncio.run(executor.aclose())


def test_a_tier_that_is_too_weak_is_refused_with_the_way_out() -> None:
    said = refusal("--require-isolation", "A", "--use-isolation", "D")
    assert said.startswith("code judge: require_isolation: tier A is required, but this server reaches only D")
    assert "--require-isolation D" in said


@pytest.mark.slow
def test_a_language_that_is_not_offered_is_logged_once() -> None:
    row = '{"x": {"source": "a", "run": ["no-such-program", "a"]}}'
    command = [*COMMAND, "--port", "0", "--num-slots", "1", "--spare-slots", "0", *WITHOUT_MODULES, "--languages", row]
    command += ["--require-isolation", "D"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it listens
        process.terminate()
        logged = process.communicate(timeout=60)[1]
    assert logged.count("no-such-program") == 1, logged


def test_preload_sets_that_cannot_be_loaded_are_refused() -> None:
    assert "no_such_module" in refusal("--preloads", '{"x": ["json", "no_such_module"]}')
    assert "`bare`" in refusal("--preloads", '{"bare": ["json"]}')
    assert "preloads" in refusal("--preloads", '{"no session can ask for it": ["json"]}')


def test_preload_sets_of_the_settings_come_beside_the_built_in_ones() -> None:
    sets = preload_sets({"more": ["json", "xml.dom"]})
    assert list(sets["bare"]) == []
    assert sets["more"] == ["json", "xml.dom"]
    assert preload_sets({"sci": ["json"]})["sci"] == ["json"]
