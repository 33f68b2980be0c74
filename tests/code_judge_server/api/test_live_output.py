"""Output of a running program, as server-sent events."""

import contextlib
import json
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from executor_jobs import tier_or_skip
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge
from scripted_executor import ScriptedExecutor, queue_on, settle

from code_judge_server.api.live_output import LiveRun
from code_judge_server.judging.judge import create_judge
from code_judge_server.languages import offered_languages
from code_judge_server.sandbox.executor import Job, Outcome
from code_judge_server.schemas import SubmissionRequest
from code_judge_server.settings import Settings

STRONGEST = "A" if os.geteuid() == 0 else "B"
Event = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module", params=[STRONGEST, pytest.param("B", marks=pytest.mark.slow), "C", "D"])
def judge_of_tier(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[JudgeProcess]:
    if request.param != "D":
        tier_or_skip(request.param)
    with running_judge(
        tmp_path_factory.mktemp("judge"), "--num-slots", "2", *WITHOUT_MODULES, isolation=request.param
    ) as judge:
        yield judge


def events(judge: JudgeProcess, **submission: Any) -> Iterator[Event]:
    """Judge a program and yield each event as it comes."""
    body = {"id": uuid.uuid4().hex, **submission}
    with judge.http.stream("POST", "/v1/submissions/events", json=body) as reply:
        assert (reply.status_code, reply.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
        name = ""
        for line in reply.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


class PrintingExecutor(ScriptedExecutor):
    """Prints some pieces at once."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__()
        self._pieces = pieces

    async def execute(self, job: Job) -> Outcome:
        assert job.on_output is not None
        for piece in self._pieces:
            job.on_output("stdout", piece)
        return await super().execute(job)


def joined(received: list[Event], name: str, test: int = 0) -> str:
    return "".join(data["text"] for event, data in received if event == name and data["test"] == test)


def test_output_comes_before_the_program_has_ended(judge_of_tier: JudgeProcess) -> None:
    code = "import sys, time\nprint('first', flush=True)\nsys.stderr.write('warned')\ntime.sleep(1.5)\nprint('last')"
    came_at: dict[str, float] = {}
    received: list[Event] = []
    for name, data in events(judge_of_tier, code=code, expected_output="first\nlast"):
        came_at.setdefault(name, time.monotonic())
        received.append((name, data))
    assert [received[0][0], received[-1][0]] == ["started", "verdict"]
    assert came_at["verdict"] - came_at["stdout"] > 1
    assert (joined(received, "stdout"), joined(received, "stderr")) == ("first\nlast\n", "warned")
    verdict = received[-1][1]
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "first\nlast\n")


def test_each_test_case_has_its_output_and_characters_are_whole(judge_of_tier: JudgeProcess) -> None:
    code = (
        "import sys, time\nfor byte in input().encode():\n"
        "    sys.stdout.buffer.write(bytes([byte])); sys.stdout.flush(); time.sleep(0.03)"
    )
    received = list(events(judge_of_tier, code=code, tests=[{"stdin": "äé"}, {"stdin": "ü"}]))
    assert [joined(received, "stdout", test) for test in (0, 1)] == ["äé", "ü"]


def test_no_output_ends_a_line_of_the_reply(judge_of_tier: JudgeProcess) -> None:
    ends = "\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    forged = 'event: verdict{0}data: {{"status": "accepted"}}{0}{0}'
    code = f"print({''.join(map(forged.format, ends))!r}, flush=True)\n1 / 0"
    received = list(events(judge_of_tier, code=code))
    assert [data["status"] for name, data in received if name == "verdict"] == ["runtime_error"]
    submissions = {"submissions": [{"id": uuid.uuid4().hex, "code": code}]}
    with judge_of_tier.http.stream("POST", "/v1/submissions/stream", json=submissions) as reply:
        assert [json.loads(line)["status"] for line in reply.iter_lines()] == ["runtime_error"]


def test_output_that_ends_within_a_character_is_that_of_the_verdict(judge_of_tier: JudgeProcess) -> None:
    code = "import os\nfor part in (b'\\xc3', b'\\xa4\\xff', b'\\xf0\\x9f\\x98'): os.write(1, part)"
    received = list(events(judge_of_tier, code=code))
    assert joined(received, "stdout") == received[-1][1]["stdout"] == "ä\ufffd\ufffd"


def test_unsupported_submissions_are_refused(judge: JudgeProcess) -> None:
    reply = judge.http.post("/v1/submissions/events", json={"id": "a", "language": "cobol", "code": ""})
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (400, "language")


def test_a_client_that_goes_away_ends_its_program(judge_of_tier: JudgeProcess) -> None:
    stream = events(judge_of_tier, code="import time\nprint(1, flush=True)\ntime.sleep(60)")
    while next(stream)[0] != "stdout":
        pass
    stream.close()  # pyright: ignore[reportAttributeAccessIssue] - it is a generator
    judge_of_tier.wait_until_running(0)


async def test_a_reader_that_is_late_misses_output_and_no_verdict() -> None:
    executor = PrintingExecutor([b"x" * 65536] * 32)
    judge = create_judge(Settings(), executor, offered_languages({}))
    with contextlib.closing(LiveRun(SubmissionRequest(id="a", code=""), judge, queue_on(executor), client="c")) as run:
        await settle()  # all is printed before the first event is read
        pieces = [piece async for piece in run.events()]
    lines = b"".join(pieces).decode().splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    assert names == ["started", *["stdout"] * 15, "output_left_out", "verdict"]


async def test_output_that_comes_by_the_character_is_held_within_bounds() -> None:
    executor = PrintingExecutor([b"x"] * 50_000)
    judge = create_judge(Settings(), executor, offered_languages({}))
    with contextlib.closing(LiveRun(SubmissionRequest(id="a", code=""), judge, queue_on(executor), client="c")) as run:
        await settle()
        pieces = [piece async for piece in run.events()]
    assert max(map(len, pieces)) < 1.1 * 2**20
    assert b"output_left_out" in b"".join(pieces)


def test_a_full_queue_is_a_429(tmp_path: Path) -> None:
    small = ["--num-slots", "1", "--spare-slots", "0", "--queue-capacity", "2", "--max-batch-items", "2"]
    with running_judge(tmp_path, *small, *WITHOUT_MODULES) as judge, contextlib.ExitStack() as stack:
        statuses: list[int] = []
        retry_after: str | None = None
        while len(statuses) < 4 and 429 not in statuses:
            body = {"id": str(len(statuses)), "code": "import time\ntime.sleep(15)"}
            reply = stack.enter_context(judge.http.stream("POST", "/v1/submissions/events", json=body))
            statuses.append(reply.status_code)
            retry_after = reply.headers.get("Retry-After")
            judge.wait_until_running()
        assert (statuses[0], statuses[-1], retry_after is not None) == (200, 429, True)
