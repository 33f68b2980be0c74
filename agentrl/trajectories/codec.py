"""Lossless encoding of trajectories and prompts as JSON objects, each with its kind and format version."""

import json
import math
from dataclasses import fields
from enum import StrEnum
from typing import Any

from agentrl.timing import Span, TimeSplit
from agentrl.types import (
    Failure,
    FailureClass,
    Prompt,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
    Turn,
)

FORMAT_VERSION = 4

JsonObject = dict[str, Any]

_OPTIONAL_OF_TURN = ("final_tool_reward", "observation", "environment_reward")
"""Fields of a turn that are only written if they have a value."""

PER_TOKEN = ("token_ids", "response_mask", "rollout_logprobs")
"""Fields of a trajectory with one entry per token; files hold them as binary arrays."""


class RecordKind(StrEnum):
    """Kind of a line in a trajectory file."""

    PROMPT = "prompt"
    TRAJECTORY = "trajectory"


def encode_prompt(prompt: Prompt) -> JsonObject:
    """Return `prompt` as a JSON object; dates and decimals in `extra` are read back as text."""
    return _header(RecordKind.PROMPT) | _shallow(prompt)


def encode_trajectory(trajectory: Trajectory) -> JsonObject:
    """Return `trajectory` as a JSON object; the NaN of unsampled positions becomes null."""
    record = encode_without_tokens(trajectory)
    record |= {name: getattr(trajectory, name) for name in PER_TOKEN}
    record["rollout_logprobs"] = [x if math.isfinite(x) else None for x in trajectory.rollout_logprobs]
    return record


def encode_without_tokens(trajectory: Trajectory) -> JsonObject:
    """Return `trajectory` as `encode_trajectory` does, less the fields of `PER_TOKEN`."""
    record = _header(RecordKind.TRAJECTORY) | _shallow(trajectory)
    for name in (
        *PER_TOKEN,
        "experts",
    ):  # hundreds of bytes of experts per token, used only by the update of the same step
        del record[name]
    if not trajectory.row_starts:
        del record["row_starts"]
    record["turns"] = [_encode_turn(turn) for turn in trajectory.turns]
    record["failures"] = [
        _shallow(failure) | {"attempt": _encode_span(failure.attempt)} for failure in trajectory.failures
    ]
    record["times"] = _shallow(trajectory.times)
    return record | {"span": _encode_span(trajectory.span), "scored": _encode_span(trajectory.scored)}


def record_kind(record: JsonObject) -> RecordKind:
    """Return the kind of `record`.

    Raises:
        ValueError: it has another format, or a version that this release cannot read.
    """
    version = record.get("version")
    if version != FORMAT_VERSION:
        raise ValueError(f"trajectory record has `version` {version!r}, this release reads {FORMAT_VERSION}")
    return RecordKind(record.get("kind"))


def decode_prompt(record: JsonObject) -> Prompt:
    """Return the prompt that `encode_prompt` wrote."""
    return Prompt(**_without_header(record))


def decode_trajectory(record: JsonObject) -> Trajectory:
    """Return the trajectory that `encode_trajectory` wrote."""
    values = _without_header(record)
    values["rollout_logprobs"] = [math.nan if x is None else x for x in record["rollout_logprobs"]]
    for name in ("span", "scored"):
        values[name] = _decode_span(record[name])
    values["version_spans"] = tuple((start, version) for start, version in record["version_spans"])
    values["turns"] = tuple(_decode_turn(turn) for turn in record["turns"])
    values["failures"] = tuple(_decode_failure(failure) for failure in record["failures"])
    values["row_starts"] = tuple(record.get("row_starts", ()))
    values["termination"] = Termination(record["termination"])
    values["times"] = TimeSplit(**record["times"])
    return Trajectory(**values)


def _encode_turn(turn: Turn) -> JsonObject:
    # Arguments stay JSON text: a strict parser would change NaN or integers beyond 64 bits, which the policy may write.
    calls = [_shallow(call) | {"arguments": json.dumps(call.arguments)} for call in turn.calls]
    record = {"text": turn.text, "calls": calls, "results": [_shallow(result) for result in turn.results]}
    record |= {"sampled": _encode_span(turn.sampled), "answered": _encode_span(turn.answered)}
    return record | {name: value for name in _OPTIONAL_OF_TURN if (value := getattr(turn, name)) is not None}


def _decode_turn(record: JsonObject) -> Turn:
    calls = tuple(ToolCall(**call | {"arguments": json.loads(call["arguments"])}) for call in record["calls"])
    results = tuple(ToolResult(**result | {"status": ToolStatus(result["status"])}) for result in record["results"])
    optional = {name: record.get(name) for name in _OPTIONAL_OF_TURN}
    return Turn(
        text=record["text"],
        calls=calls,
        results=results,
        sampled=_decode_span(record["sampled"]),
        answered=_decode_span(record["answered"]),
        **optional,
    )


def _decode_failure(record: JsonObject) -> Failure:
    decoded = {"failure_class": FailureClass(record["failure_class"]), "attempt": _decode_span(record["attempt"])}
    return Failure(**record | decoded)


def _encode_span(span: Span | None) -> JsonObject | None:
    return None if span is None else _shallow(span)


def _decode_span(record: JsonObject | None) -> Span | None:
    return None if record is None else Span(**record)


def _header(kind: RecordKind) -> JsonObject:
    return {"version": FORMAT_VERSION, "kind": kind}


def _without_header(record: JsonObject) -> JsonObject:
    return {key: value for key, value in record.items() if key not in ("version", "kind")}


def _shallow(item: Prompt | Trajectory | ToolCall | ToolResult | Failure | TimeSplit | Span) -> JsonObject:
    # `dataclasses.asdict` would copy every list of tokens.
    return {field.name: getattr(item, field.name) for field in fields(item)}
