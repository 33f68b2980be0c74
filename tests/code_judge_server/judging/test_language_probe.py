"""A language whose programs are invisible to jobs is not offered, unless the operator shows them its folder."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_in_process import judge_in_process
from judge_process import WITHOUT_MODULES, running_judge

from code_judge_server.judging.language_probe import unusable_languages
from code_judge_server.languages import LanguageRules, offered_languages
from code_judge_server.settings import Settings


@pytest.fixture
def folder_of_shell() -> Iterator[Path]:
    """A folder that jobs do not see, with a shell of its own that anybody may run."""
    folder = Path("/opt") / f"languages-{os.getpid()}"
    try:
        folder.mkdir(mode=0o755)
    except OSError as error:
        pytest.skip(f"/opt: {error}")
    try:
        shutil.copy2(shutil.which("sh") or "/bin/sh", folder / "my-shell")
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("isolation", ["A", "B"])
async def test_a_program_outside_of_the_jail_is_detected(tmp_path: Path, folder_of_shell: Path, isolation: str) -> None:
    shell = str(folder_of_shell / "my-shell")
    offered = offered_languages({"mine": LanguageRules(source="a.sh", run=(shell, "a.sh"))})
    languages = {name: offered[name] for name in ("python", "mine")}
    limits = Settings().limit_policy.effective(Settings().default_limits)
    async with judge_in_process(tmp_path, isolation=isolation) as judge:
        assert await unusable_languages(judge, languages, limits=limits) == {
            "mine": f"programs cannot run {shell}. Name its folder in read_only_paths"
        }
    async with judge_in_process(
        tmp_path, isolation=isolation, read_only_paths=[folder_of_shell], languages={"mine": languages["mine"]}
    ) as judge:
        assert await unusable_languages(judge, languages, limits=limits) == {}
        verdict = await judge.verdict(language="mine", code=f"echo $0; touch {folder_of_shell}/a")
    assert verdict.stdout == "a.sh\n"
    assert "Read-only file system" in verdict.stderr


@pytest.mark.parametrize("isolation", ["A", "B", "C", "D"])
async def test_a_language_whose_probe_fails_in_the_jail_is_not_offered(tmp_path: Path, isolation: str) -> None:
    rows = {
        "broken": LanguageRules(source="a.sh", run=("sh", "a.sh"), probe=("sh", "-c", "echo no epoll >&2; exit 3")),
        "working": LanguageRules(source="a.sh", run=("sh", "a.sh"), probe=("sh", "-c", "exit 0")),
    }
    limits = Settings().limit_policy.effective(Settings().default_limits)
    async with judge_in_process(tmp_path, isolation=isolation) as judge:
        reasons = await unusable_languages(judge, offered_languages(rows), limits=limits)
    assert "working" not in reasons
    assert "ended with exit code 3: no epoll" in reasons["broken"]


def test_a_replacement_is_offered_for_a_built_in_language_that_does_not_work(
    tmp_path: Path, folder_of_shell: Path
) -> None:
    """`tsx` is installed, and its probe by `node` fails, as in tier C, where nothing can listen; `ts-node` works."""
    for program, exit_code in {"tsx": 0, "ts-node": 0, "node": 1}.items():
        (folder_of_shell / program).write_text(f"#!/bin/sh\nexit {exit_code}\n")
        (folder_of_shell / program).chmod(0o755)
    path = f"{folder_of_shell}:{os.environ['PATH']}"
    with running_judge(tmp_path, *WITHOUT_MODULES, isolation="D", environment={"PATH": path}) as judge:
        languages = judge.http.get("/v1/health").json()["languages"]
        verdict = judge.judge(language="typescript", code="")
    assert ("typescript" in languages, "javascript" in languages) == (True, False)
    assert verdict["status"] == "accepted", verdict


def test_the_server_does_not_offer_it_and_says_why(tmp_path: Path, folder_of_shell: Path) -> None:
    row = {"mine": {"source": "a.sh", "run": [str(folder_of_shell / "my-shell"), "a.sh"]}}
    log = tmp_path / "log"
    with running_judge(
        tmp_path, *WITHOUT_MODULES, isolation="B", environment={"CODE_JUDGE_LANGUAGES": json.dumps(row)}, stderr_to=log
    ) as judge:
        languages = judge.http.get("/v1/health").json()["languages"]
        reply = judge.http.post("/v1/submissions", json={"id": "a", "language": "mine", "code": ""})
    assert "python" in languages
    assert "mine" not in languages
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "language")
    assert "Name its folder in read_only_paths" in log.read_text()


@pytest.mark.parametrize("path", ["relative", "/no/such/folder"])
def test_missing_paths_are_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODE_JUDGE_READ_ONLY_PATHS", json.dumps([path]))
    with pytest.raises(ValueError, match="must be the absolute path"):
        Settings()
