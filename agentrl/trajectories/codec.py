"""Lossless encoding of trajectories and prompts as JSON objects, each with its kind and format version."""

import json
import math
from dataclasses import fields
from enum import StrEnum
from typing import Any

from agentrl.types import (
    Failure,
    FailureClass,
    Prompt,
    Termination,
    TimeSplit,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
    Turn,
)

FORMAT_VERSION = 3

JsonObject = dict[str, Any]

_OPTIONAL_OF_TURN = ("final_tool_reward", "observation", "environment_reward")
"""Fields of a turn that are only written if they have a value."""


class RecordKind(StrEnum):
    """Kind of a line in a trajectory file."""

    PROMPT = "prompt"
    TRAJECTORY = "trajectory"


def encode_prompt(prompt: Prompt) -> JsonObject:
    """Return `prompt` as a JSON object; dates and decimals in `extra` are read back as text."""
    return _header(RecordKind.PROMPT) | _shallow(prompt)


def encode_trajectory(trajectory: Trajectory) -> JsonObject:
    """Return `trajectory` as a JSON object; the NaN of unsampled positions becomes null."""
    record = _header(RecordKind.TRAJECTORY) | _shallow(trajectory)
    del record["experts"]  # hundreds of bytes per token, used only by the update of the same step
    if not trajectory.row_starts:
        del record["row_starts"]
    record["rollout_logprobs"] = [x if math.isfinite(x) else None for x in trajectory.rollout_logprobs]
    record["turns"] = [_encode_turn(turn) for turn in trajectory.turns]
    record["failures"] = [_shallow(failure) for failure in trajectory.failures]
    record["times"] = _shallow(trajectory.times)
    return record


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
    return record | {name: value for name in _OPTIONAL_OF_TURN if (value := getattr(turn, name)) is not None}


def _decode_turn(record: JsonObject) -> Turn:
    calls = tuple(ToolCall(**call | {"arguments": json.loads(call["arguments"])}) for call in record["calls"])
    results = tuple(ToolResult(**result | {"status": ToolStatus(result["status"])}) for result in record["results"])
    optional = {name: record.get(name) for name in _OPTIONAL_OF_TURN}
    return Turn(text=record["text"], calls=calls, results=results, **optional)


def _decode_failure(record: JsonObject) -> Failure:
    return Failure(**record | {"failure_class": FailureClass(record["failure_class"])})


def _header(kind: RecordKind) -> JsonObject:
    return {"version": FORMAT_VERSION, "kind": kind}


def _without_header(record: JsonObject) -> JsonObject:
    return {key: value for key, value in record.items() if key not in ("version", "kind")}


def _shallow(item: Prompt | Trajectory | ToolCall | ToolResult | Failure | TimeSplit) -> JsonObject:
    # `dataclasses.asdict` would copy every list of tokens.
    return {field.name: getattr(item, field.name) for field in fields(item)}
