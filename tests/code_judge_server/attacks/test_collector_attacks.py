"""Programs whose output files are traps for the process that collects them."""

import base64
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from attacks.attack import LIMITS, MIB
from attacks.attacked_judge import AttackedJudge, judge_under_attack
from judge_process import WITHOUT_MODULES

CANARY = "TARGET['canary_file']"


@pytest.fixture(scope="module", params=["root", pytest.param("ordinary_user", marks=pytest.mark.slow)])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedJudge]:
    with judge_under_attack(request.param, tmp_path_factory.mktemp(request.param), *WITHOUT_MODULES) as judge:
        yield judge


def collected(attacked: AttackedJudge, code: str, paths: list[str], **limits: float) -> dict[str, bytes]:
    """Run a program and return the collected files."""
    verdict = run(attacked, code, paths, **limits)
    return {path: base64.b64decode(content) for path, content in verdict["files"].items()}


def run(attacked: AttackedJudge, code: str, paths: list[str], **limits: float) -> dict[str, Any]:
    """Run a program beside an honest one, and return its verdict."""
    code = f"import os, socket, sys, time\nTARGET = {attacked.around.target!r}\n{code}"
    submission = {"id": uuid.uuid4().hex, "code": code, "collect": paths, "limits": LIMITS | limits}
    return attacked.judge_beside_an_honest_one(submission)


def test_regular_files_are_collected(attacked: AttackedJudge) -> None:
    code = "os.makedirs('a/b'); open('a/b/c', 'wb').write(bytes(range(256))); open('d', 'w').close(); os.link('d', 'e')"
    paths = ["a/b/c", "d", "e", "no-such-file", "main.py"]
    files = collected(attacked, code, paths)
    assert (files["a/b/c"], files["d"], files["e"]) == (bytes(range(256)), b"", b"")
    assert set(files) == {"a/b/c", "d", "e", "main.py"}


@pytest.mark.parametrize(
    ("name", "code"),
    {
        "link to a file of the server": f"os.symlink({CANARY}, 'x')",
        "link to a file of the jail": "os.symlink('/etc/passwd', 'x')",
        "link to init's memory": "os.symlink('/proc/1/environ', 'x')",
        "link to the own file": "open('y', 'w').write('y'); os.symlink('y', 'x')",
        "link that goes round": "os.symlink('x', 'x')",
        "folder": "os.mkdir('x')",
        "pipe": "os.mkfifo('x')",
        "socket": "socket.socket(socket.AF_UNIX).bind('x')",
        "link to a device": "os.symlink('/dev/zero', 'x')",
        "link to a descriptor": "os.symlink('/proc/self/fd/0', 'x')",
        "sparse and huge": "os.truncate(os.open('x', os.O_CREAT | os.O_RDWR), 1 << 24)",
    }.items(),
    ids=lambda value: value.replace(" ", "-") if len(value) < 40 and "(" not in value else "",
)
def test_other_than_plain_files_are_left_out(attacked: AttackedJudge, name: str, code: str) -> None:
    attacked.server.judge(code="print(1)")
    verdict = run(attacked, code + "\nprint('done')", ["x"])
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "done\n"), verdict
    if name == "sparse and huge":  # as large as all files may be, within the collection limit
        assert all(len(base64.b64decode(content)) <= 16 * MIB for content in verdict["files"].values())
    else:
        assert verdict["files"] == {}


def test_nothing_behind_a_link_comes_back(attacked: AttackedJudge) -> None:
    links = f"os.symlink(os.path.dirname({CANARY}), 'a'); os.symlink('/', 'root'); os.symlink('.', 'here')"
    code = f"{links}\nopen('x', 'w').close()"
    name = attacked.around.canary_file.name
    assert collected(attacked, code, [f"a/{name}", "root/etc/passwd", "here/x", "x"]) == {"x": b""}


@pytest.mark.parametrize(
    "path", ["../main.py", "/etc/passwd", "a/../../b", "", ".", "a//b", "a/./b", "/".join("a" * 17)]
)
def test_a_path_out_of_the_folder_is_refused(attacked: AttackedJudge, path: str) -> None:
    submission = {"id": "a", "code": "", "collect": [path]}
    assert attacked.server.http.post("/v1/submissions", json=submission).status_code == 400


def test_swapping_files_for_links_gains_nothing(attacked: AttackedJudge) -> None:
    code = f"""
if os.fork() == 0:
    os.setsid()
    os.symlink({CANARY}, 'link'); os.symlink('/etc/passwd', 'other')
    open('file', 'w').write('harmless')
    while True:
        for source in ('link', 'file', 'other'):
            try:
                os.link(source, 'new', follow_symlinks=False); os.rename('new', 'x')
            except OSError:
                pass
time.sleep(0.05)
"""
    for _ in range(10):
        files = collected(attacked, code, ["x"])
        assert files in ({}, {"x": b"harmless"})


def test_files_that_change_while_they_are_read_do_no_harm(attacked: AttackedJudge) -> None:
    code = """
open('x', 'wb').write(bytes(1 << 20))
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        while True:
            os.truncate('x', 0); os.truncate('x', 1 << 22)
time.sleep(0.05)
"""
    for _ in range(5):
        verdict = run(attacked, code, ["x"], cpu_time_s=5.0)
        assert verdict["status"] == "accepted", verdict
        assert all(len(base64.b64decode(content)) <= 1 << 22 for content in verdict["files"].values())


def test_interference_with_the_collector_changes_no_other_verdict(attacked: AttackedJudge) -> None:
    code = """
open('x', 'w').write('harmless')
if os.fork() == 0:
    os.setsid()
    known = set(os.listdir('/proc'))
    while True:
        for pid in set(os.listdir('/proc')) - known:
            if pid.isdigit():
                for descriptor in range(32):
                    try:
                        os.write(os.open(f'/proc/{pid}/fd/{descriptor}', os.O_WRONLY), b'[["x", 5]]')
                    except OSError:
                        pass
                try:
                    os.kill(int(pid), 19)
                except OSError:
                    pass
time.sleep(0.05)
"""
    for _ in range(10):
        verdict = run(attacked, code, ["x"], wall_time_s=1.0)
        assert verdict["status"] in ("accepted", "time_limit_exceeded"), verdict
        assert set(verdict["files"].values()) <= {base64.b64encode(b"harmless").decode()}
        honest = attacked.server.judge_batch([attacked.honest("one"), attacked.honest("other")])
        assert [other["status"] for other in honest] == ["accepted"] * 2, honest


def test_files_beyond_the_collection_limit_are_left_out(attacked: AttackedJudge) -> None:
    code = "for number in range(30): open(str(number), 'wb').write(bytes(1 << 20))"
    files = collected(attacked, code, [str(number) for number in range(30)], disk_bytes=64 * MIB)
    assert 0 < sum(map(len, files.values())) <= 16 * MIB


def test_a_file_without_rights_does_not_matter(attacked: AttackedJudge) -> None:
    code = "os.mkdir('a'); open('a/x', 'w').close(); os.chmod('a', 0); open('y', 'w').close(); os.chmod('y', 0); print('done')"
    verdict = run(attacked, code, ["a/x", "y"])
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "done\n")


def test_programs_that_fail_or_time_out_bring_files_back_without_harm(attacked: AttackedJudge) -> None:
    verdict = run(attacked, "open('x', 'w').write('x'); os.mkfifo('y'); os.abort()", ["x", "y"])
    assert (verdict["status"], verdict["signal"]) == ("runtime_error", 6)
    verdict = run(attacked, "open('x', 'w').write('x')\nwhile True: pass", ["x"], cpu_time_s=0.2)
    assert verdict["status"] == "time_limit_exceeded"
