"""Scan of all recorded texts of a run, in a process of its own that reads a request from standard input.

Both scans go through the steps from the newest to the oldest, and write JSON lines as they find something:

    search           where a regular expression matches in prompts, turns, calls, results and failures
    failed_calls     failed tool calls by tool, status and last line of the result, with counts by step

A regular expression can take for ever: the reader of the lines ends the process after a time, and the process limits itself.
"""

import math
import re
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agentrl.observability.json_lines import decode_line, encode_line
from agentrl.trajectories.frames import Frame, FrameKind, read_frames
from agentrl.trajectories.store import TrajectoryStore

MAX_S = 20
"""Time that a scan gets."""
_MAX_MEMORY_BYTES = 4 << 30
_MAX_HITS = 300
_SHOW_EVERY_S = 1.0
"""Pause between two states of the clusters, each of which is whole."""
_CONTEXT = 90
"""Characters of a hit on either side."""
_MAX_CAUSE = 160
_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Record of a trajectory or of a prompt, decoded."""

    file: str
    offset: int
    head: dict[str, Any]
    record: dict[str, Any]
    is_prompt: bool


def main() -> None:
    """Run the request."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_S, MAX_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))
    request = orjson.loads(sys.stdin.buffer.readline())
    run_dir = Path(request["run_dir"])
    scan = _search(run_dir, request["pattern"]) if request["kind"] == "search" else _failed_calls(run_dir)
    for item in scan:
        sys.stdout.buffer.write(encode_line(item))
        sys.stdout.buffer.flush()


def _search(run_dir: Path, pattern: str) -> Iterator[dict[str, Any]]:
    try:
        expression = re.compile(pattern)
    except (re.error, OverflowError, RecursionError, MemoryError) as error:
        yield {"error": f"pattern: {error}"}
        return
    num_hits = num_read = 0
    for file in _newest_first(run_dir):
        for entry in _entries(file):
            num_read += 1
            for part, text in _texts(entry):
                match = expression.search(text)
                if match is None:
                    continue
                num_hits += 1
                yield _hit(entry, part, text, match)
                break  # one for each trajectory
            if num_hits >= _MAX_HITS:
                yield {"done": True, "read": num_read, "is_full": True, "last": entry.file}
                return
        yield {"read": num_read, "last": file.stem}
    yield {"done": True, "read": num_read, "is_full": False, "last": None}


def _hit(entry: _Entry, part: str, text: str, match: re.Match[str]) -> dict[str, Any]:
    start, end = match.span()
    shown_end = min(end, start + 2 * _CONTEXT)
    return {
        "file": entry.file,
        "offset": None if entry.is_prompt else entry.offset,
        "prompt_id": entry.head["prompt_id"],
        "sample_index": entry.head.get("sample_index"),
        "reward": entry.head.get("reward"),
        "part": part,
        "before": text[max(0, start - _CONTEXT) : start],
        "match": text[start:shown_end],
        "after": text[shown_end : shown_end + _CONTEXT],
    }


def _texts(entry: _Entry) -> Iterator[tuple[str, str]]:
    record = entry.record
    if entry.is_prompt:
        for message in record["messages"]:
            yield str(message.get("role", "prompt")), _text_of(message.get("content"))
        return
    for number, turn in enumerate(record["turns"], start=1):
        yield f"turn {number}", turn["text"]
        for call in turn["calls"]:
            # A program as the policy wrote it, not as JSON escapes it.
            for value in _arguments(call["arguments"]).values():
                yield f"call {number}", _text_of(value)
        for result in turn["results"]:
            yield f"result {number}", result["text"]
            yield f"result {number}", result["cause"]
        if turn.get("observation") is not None:
            yield f"environment {number}", turn["observation"]
    for failure in record["failures"]:
        yield "failure", failure["message"]


def _failed_calls(run_dir: Path) -> Iterator[dict[str, Any]]:
    clusters: dict[tuple[str, str, str], dict[str, Any]] = {}
    shown_at, last = -math.inf, None

    def shown() -> dict[str, Any]:
        ordered = sorted(clusters.values(), key=lambda cluster: -cluster["count"])
        return {"last": last, "clusters": ordered[:100]}

    for file in _newest_first(run_dir):
        for entry in _entries(file, failed_calls_only=True):
            for turn in entry.record["turns"]:
                for call, result in zip(turn["calls"], turn["results"], strict=False):
                    if result["status"] != "ok":
                        _count(clusters, entry, call, result)
        last = file.stem
        if time.monotonic() > shown_at + _SHOW_EVERY_S:  # the whole state each time
            shown_at = time.monotonic()
            yield shown()
    yield shown()
    yield {"done": True, "last": None}


def _count(
    clusters: dict[tuple[str, str, str], dict[str, Any]], entry: _Entry, call: dict[str, Any], result: dict[str, Any]
) -> None:
    cause = result["cause"] or (result["text"].strip().splitlines() or [""])[-1]
    cause = cause[:_MAX_CAUSE]
    key = (call["name"], result["status"], _NUMBERS.sub("#", cause))
    cluster = clusters.setdefault(
        key,
        {
            "tool": call["name"],
            "status": result["status"],
            "cause": cause,
            "count": 0,
            "steps": {},
            "file": entry.file,
            "offset": entry.offset,
        },
    )
    cluster["count"] += 1
    cluster["steps"][entry.file] = cluster["steps"].get(entry.file, 0) + 1


def _newest_first(run_dir: Path) -> list[Path]:
    return sorted(TrajectoryStore(run_dir).files(), key=lambda file: file.stem.rpartition("_")[::2][::-1], reverse=True)


def _entries(file: Path, *, failed_calls_only: bool = False) -> Iterator[_Entry]:
    for frame in read_frames(file):
        is_prompt = frame.kind is FrameKind.PROMPT
        if failed_calls_only and is_prompt:
            continue
        head = decode_line(frame.head, where=f"{file}: frame at byte {frame.offset}")
        if failed_calls_only and not head["num_failed_tool_calls"]:
            continue
        yield _entry(file, frame, head, is_prompt)


def _entry(file: Path, frame: Frame, head: dict[str, Any], is_prompt: bool) -> _Entry:
    record = decode_line(frame.text(), where=f"{file}: frame at byte {frame.offset}")
    return _Entry(file=file.stem, offset=frame.offset, head=head, record=record, is_prompt=is_prompt)


def _arguments(encoded: str) -> dict[str, Any]:
    values = decode_line(encoded.encode(errors="surrogatepass"), where="arguments") if encoded else {}
    return values if isinstance(values, dict) else {}


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else encode_line({"": value}).decode()


if __name__ == "__main__":
    main()
