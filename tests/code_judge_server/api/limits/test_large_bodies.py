"""Large bodies are accepted, or refused, in pieces between which the event loop serves others."""

import asyncio
import gc
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from scripted_executor import ScriptedExecutor, queue_on

from code_judge_server.api.http_errors import install_error_handlers
from code_judge_server.api.limits.json_bounds import validated_by_items
from code_judge_server.api.native_api import submission_router
from code_judge_server.compatible.code_judge_api import code_judge_router
from code_judge_server.compatible.sandbox_fusion_api import sandbox_fusion_router
from code_judge_server.languages import offered_languages
from code_judge_server.limits import with_room_for
from code_judge_server.sandbox.executor import JobLimits
from code_judge_server.schemas import IsolationTier, Submission, SubmissionBatch
from code_judge_server.settings import Settings
from code_judge_server.wire_fields import check_folders

BATCH = "/v1/submissions/batch"
MOST_CPU_TIME_S = 0.8
"""Most CPU time in one piece; about 0.2 s on an idle core."""


def app() -> FastAPI:
    settings, languages = Settings(), offered_languages({})
    queue = queue_on(ScriptedExecutor())
    served = FastAPI()
    install_error_handlers(served)
    served.include_router(submission_router(settings, queue, languages))
    served.include_router(code_judge_router(settings, queue, languages))
    served.include_router(sandbox_fusion_router(settings, queue, languages, IsolationTier.D))
    return served


@pytest.fixture
def only_its_own_objects() -> Iterator[None]:
    """Exclude the objects of these tests, far more than a judge has, from garbage collections."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


async def post(path: str, body: bytes) -> tuple[httpx.Response, float]:
    """Return the reply, and the most CPU time that the loop's thread used before it switched tasks."""
    most = 0.0

    async def watch() -> None:
        nonlocal most
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.002)
            most = max(most, time.thread_time() - before)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app()), base_url="http://localhost") as client:
        reply = await client.post(path, content=body, headers={"Content-Type": "application/json"}, timeout=100)
    await asyncio.sleep(0.01)
    watching.cancel()
    return reply, most


def batch(*items: str) -> bytes:
    return ('{"deadline_s": 0.01, "submissions": [' + ",".join(items) + "]}").encode()


def submission(number: int, rest: str) -> str:
    return f'{{"id": "{number}", "code": "hold", {rest}}}'


def files(num: int, folder: str = "a", content: str = "") -> str:
    return '"files": {' + ",".join(f'"{folder}/{number}": "{content}"' for number in range(num)) + "}"


DEEP = "/".join("a" * 15)
MIB = 1024 * 1024


@pytest.mark.alone
@pytest.mark.usefixtures("only_its_own_objects")
@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (BATCH, lambda: batch(*(submission(n, files(1020, DEEP)) for n in range(60))), 200),
        (BATCH, lambda: batch(*(submission(n, files(1000)) for n in range(250))), 200),
        (BATCH, lambda: batch(submission(0, files(250_000, content="*"))), 400),
        (BATCH, lambda: batch(submission(0, '"collect": [' + '"../a",' * 250_000 + '"a"]')), 400),
        (BATCH, lambda: batch(submission(0, '"files": {"' + "a/" * 20 * MIB + '": ""}')), 400),
        (BATCH, lambda: batch(*(submission(n, files(1000, "main.py")) for n in range(250))), 400),
        (BATCH, lambda: batch(*(submission(n, f'"limits": {{"max_tasks": {"9" * 4000}}}') for n in range(8000))), 413),
        ("/run_code", lambda: ('{"code": "", "language": "python", ' + files(8, "./" * 3 * MIB) + "}").encode(), 400),
        ("/run/batch", lambda: b'{"submissions": [' + b"{}," * 120_000 + b"{}]}", 413),
    ],
    ids=["deep", "flat", "no base64", "collect", "slashes", "main.py", "digits", "dots", "too many"],
)
async def test_no_body_blocks_the_event_loop(path: str, body: Any, status: int) -> None:
    reply, most_s = await post(path, body())
    assert reply.status_code == status, reply.text[:500]
    assert len(reply.content) < 120_000
    assert most_s < MOST_CPU_TIME_S


def plain(num: int, **last: object) -> dict[str, Any]:
    items: list[dict[str, Any]] = [{"id": str(n), "code": "x", "tests": [{}] * 8} for n in range(num)]
    items[-1].update(last)
    return {"submissions": items}


async def test_a_batch_validated_by_items_equals_one_validated_whole() -> None:
    body = plain(3, files={"a": "YWI="}, limits={"wall_time_s": 1}, checker={"kind": "floats"}) | {"deadline_s": 2}
    content = json.dumps(body).encode()
    by_items = await validated_by_items(SubmissionBatch, content)
    whole = SubmissionBatch.model_validate_json(content)
    assert by_items == whole
    assert by_items.model_dump_json(exclude_unset=True) == whole.model_dump_json(exclude_unset=True)
    assert isinstance(by_items, SubmissionBatch)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda num: plain(num, code=1),
        lambda num: plain(num, id=""),
        lambda num: plain(num, files={"a": "", "a/b": ""}),
        lambda num: plain(num, tests=[{}, {"stdin": 1}, {"stdin": 2}]),
        lambda num: plain(num) | {"deadline_s": -1},
        lambda num: plain(num) | {"colour": "red"},
    ],
    ids=["code", "id", "files", "tests", "deadline", "unknown"],
)
async def test_a_large_batch_is_refused_with_the_message_of_a_small_one(wrong: Any) -> None:
    replies = [(await post(BATCH, json.dumps(wrong(num)).encode()))[0] for num in (64, 4000)]
    assert [reply.status_code for reply in replies] == [400, 400]
    texts = [reply.text.replace("submissions.63", "submissions.3999") for reply in replies]
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["errors"] != []


async def test_a_large_batch_of_too_many_is_a_413() -> None:
    reply, _ = await post(BATCH, json.dumps(plain(4097)).encode())
    assert (reply.status_code, reply.json()["errors"][0]["field"]) == (413, "submissions")


@pytest.mark.parametrize(
    ("paths", "is_wrong"),
    [
        ({"a", "a/b"}, True),
        ({"a", "a b", "a!", "a-b", "a/b"}, True),  # characters below the slash stand between them
        ({"a", "a!/b", "ab/c", "b/a"}, False),
        ({"a/b/c", "a/b", "x"}, True),
        ({"a/b/c", "a/bc", "a/b.c"}, False),
        ({"\u00e4", "\u00e4/\u20ac"}, True),
        ({"a"}, False),
    ],
)
def test_a_file_that_is_a_folder_is_found(paths: set[str], is_wrong: bool) -> None:
    if is_wrong:
        with pytest.raises(ValueError, match="cannot be a file and the folder of"):
            check_folders(paths)
    else:
        check_folders(paths)


def test_each_folder_has_room_once() -> None:
    limits = JobLimits(cpu_time_s=1, wall_time_s=1, memory_bytes=1, output_bytes=1, max_tasks=1, disk_bytes=0)
    paths = ["a/b/c/d", "a/b/e", "a/f", "g", "a/b/c/h", "i/j"]
    expected = {path[:end] for path in paths for end in range(len(path)) if path[end] == "/"}
    assert len(expected) == 4
    room = with_room_for(limits, dict.fromkeys(paths, b"x")).disk_bytes
    assert room == (1 + len(expected) + len(paths)) * 4096


def test_files_may_be_as_many_as_before() -> None:
    given = {"id": "a", "code": "", "files": {f"f{number}": "" for number in range(1024)}}
    assert len(Submission.model_validate_json(json.dumps(given)).files) == 1024
    assert Submission.model_json_schema()["properties"]["files"]["maxProperties"] == 1024
