"""The start of a job, by compiled code or, without a compiler, by Python: both do the same."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jail_driver import MIB, Jail, jail
from jail_tiers import NAMESPACE_TIERS

from code_judge_server.jail.native import compiled

pytestmark = pytest.mark.skipif(not NAMESPACE_TIERS, reason="this machine gives no namespaces")

LOOK = """
import json, os, resource, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
names = ["Uid", "Gid", "Groups", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "SigBlk", "SigIgn", "NSpid"]
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
files = {}
for folder, _, found in os.walk("."):
    files |= {os.path.join(folder, name): os.stat(os.path.join(folder, name)).st_mode for name in found}
    files[folder] = os.stat(folder).st_mode
print(json.dumps({
    "status": {name: status[name].split() for name in names},
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    "files": files,
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "descriptors": sorted(os.listdir("/proc/self/fd")),
    "oom": open("/proc/self/oom_score_adj").read(),
    "namespaces": sorted(os.listdir("/proc/self/ns")),
    "session": os.getsid(0) == os.getpid(),
    "stdin": sys.stdin.read(),
}))
"""
FILES = {"a/b/c.txt": b"x" * 100_000, "empty": b"", "ü/é.txt": b"1"}


@pytest.fixture(params=NAMESPACE_TIERS)
def both(request: pytest.FixtureRequest) -> Iterator[list[Jail]]:
    with jail(request.param) as compiled, jail(request.param, fast_path=False) as python:
        assert compiled.plan.job_start is not None, "the tests need a C compiler"
        assert python.plan.job_start is None
        yield [compiled, python]


def test_compiled_and_python_starts_make_the_same_job(both: list[Jail]):
    seen = [started.run_python(LOOK, files=FILES, stdin=b"in") for started in both]
    assert seen[0].ended["exit_code"] == 0, seen[0].stderr
    # But for the users, which each plan draws.
    texts = [ran.text.replace(str(started.plan.first_uid), "user") for ran, started in zip(seen, both, strict=True)]
    assert texts[0] == texts[1]


def test_files_arrive_whole(both: list[Jail]):
    paths = [*FILES, "main.py"]
    for started in both:
        ran = started.run_python("", files=FILES, collect=paths)
        assert ran.files == {**FILES, "main.py": b""}


@pytest.mark.parametrize(
    ("files", "reasons"),
    [
        ({"a": b"x" * 4 * MIB}, ["No space left on device"]),
        ({"a": b"", "a/b": b""}, ["File exists", "Not a directory"]),
        ({"x" * 300: b""}, ["File name too long"]),
    ],
    ids=["no room", "a file in the way", "a long name"],
)
def test_a_failed_start_is_reported_and_the_slot_survives(
    both: list[Jail], files: dict[str, bytes], reasons: list[str]
):
    for started in both:
        ended = started.run_python("print(1)", files=files, limits={"disk_bytes": MIB}).ended
        assert ended["exit_code"] == 1
        assert ended["error"].startswith("job: ")
        assert any(reason in ended["error"] for reason in reasons)
        assert started.run_python("print('again')").text == "again"


def test_every_job_starts_from_the_same_memory(both: list[Jail]):
    compiled = both[0]
    code = "print([id([]), id('x' * 50), id(object())], sum(map(len, open('/proc/self/maps'))))"
    first = compiled.run_python(code).text
    compiled.run_python("kept = [bytearray(5000) for _ in range(2000)]", files=FILES, collect=["main.py"])
    compiled.run(["/bin/echo", "a longer command, " * 400])
    assert compiled.run_python(code).text == first


@pytest.mark.slow
def test_a_job_can_map_and_give_back_memory_beside_that_of_the_snapshot(both: list[Jail]):
    code = """
blocks = [bytes([number % 256]) * size for number in range(40) for size in (24, 500, 4_000, 200_000, 3_000_000)]
del blocks[::2]
blocks += [bytes(size) for size in (30, 600, 5_000, 300_000) for _ in range(200)]
print(sum(map(sum, blocks[:100])), sum(any(block) for block in blocks[100:]))
"""
    assert [started.run_python(code).text for started in both] == [both[1].run_python(code).text] * 2


def test_where_no_snapshot_can_be_taken_jobs_start_without(monkeypatch: pytest.MonkeyPatch):
    look = "print('snapshot' in open('/proc/self/maps').read())"
    with jail(NAMESPACE_TIERS[0]) as started:
        assert started.run_python(look).text == "True"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))  # less than the interpreter takes up
    try:
        with jail(NAMESPACE_TIERS[0]) as started:
            assert started.run_python(look).text == "False"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_forks_from_the_snapshot_fail_jobs_start_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    folder = Path(compiled.__file__).parent
    for name in ("snapshot.c", "snapshot.h", "job_start.c"):
        shutil.copy(folder / name, tmp_path)
    source = (tmp_path / "snapshot.c").read_text()
    begin = "int snapshot_restore(void) {\n"
    assert begin in source
    (tmp_path / "snapshot.c").write_text(source.replace(begin, f"{begin}    if (snapshot.end) return -1;\n"))
    library = tmp_path / "job_start.so"
    sources = [tmp_path / "snapshot.c", tmp_path / "job_start.c"]
    subprocess.run(["cc", "-shared", "-fPIC", *sources, "-o", library], check=True)
    monkeypatch.setattr(compiled, "open_job_start", lambda: os.open(library, os.O_RDONLY | os.O_CLOEXEC))
    with jail(NAMESPACE_TIERS[0]) as started:
        assert started.plan.job_start is not None
        for _ in range(2):
            assert started.run_python("print(open('main.py').read())", collect=["main.py"]).ended["exit_code"] == 0


def test_jobs_start_without_a_library_that_does_not_load(monkeypatch: pytest.MonkeyPatch):
    def open_garbage() -> int:
        descriptor = os.memfd_create("job_start")
        os.write(descriptor, b"no library")
        return descriptor

    monkeypatch.setattr(compiled, "open_job_start", open_garbage)
    with jail(NAMESPACE_TIERS[0]) as started:
        assert started.run_python("print(1)").text == "1"


def test_without_the_compiled_start_there_is_still_the_fast_path(monkeypatch: pytest.MonkeyPatch):
    def refuse() -> int:
        raise compiled.NotCompiledError("headers are too old")

    monkeypatch.setattr(compiled, "open_job_start", refuse)
    with jail(NAMESPACE_TIERS[0]) as started:
        assert (started.plan.init is not None, started.plan.job_start) == (True, None)
        assert started.run_python("print(1)").text == "1"
