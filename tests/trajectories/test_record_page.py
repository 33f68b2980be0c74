"""docs/data.md names every field of a record as the codec writes it, and no other."""

import json
import re
from pathlib import Path
from typing import Any

from agentrl.timing import Span
from agentrl.trajectories.codec import decode_prompt, encode_prompt, encode_trajectory
from agentrl.types import (
    Failure,
    FailureClass,
    Termination,
    ToolCall,
    ToolResult,
    ToolStatus,
    Trajectory,
    Turn,
)

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data.md").read_text()
RECORD = PAGE.partition("<!-- record -->")[2].partition("<!-- /record -->")[0]
TRAJECTORY = Trajectory(
    trajectory_id="1-p-0",
    prompt_id="p",
    sample_index=0,
    token_ids=[5, 6],
    num_prompt_tokens=1,
    response_mask=[0, 1],
    rollout_logprobs=[float("nan"), -0.1],
    version_spans=((1, 0),),
    row_starts=(1,),
    turns=(
        Turn(
            text="hm",
            calls=(ToolCall(call_id="0", name="python", arguments={"code": ""}),),
            results=(ToolResult(status=ToolStatus.OK, text="1"),),
            final_tool_reward=0.5,
            observation="higher",
            environment_reward=-0.1,
        ),
    ),
    termination=Termination.ANSWERED,
    failures=(Failure(failure_class=FailureClass.JUDGE, message="away"),),
    span=Span(started_at=1.0, ended_at=2.0),
)


def rows(title: str) -> dict[str, str]:
    """The table under a title, by its first column."""
    table = RECORD.partition(f"| field of a {title} |")[2].partition("\n\n")[0]
    lines = (line.strip("|").partition(" | ") for line in table.splitlines()[2:])
    return {first.strip(): rest for first, _, rest in lines}


def names(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+)`", text))


def test_the_example_of_a_prompt_is_what_the_codec_writes():
    [example] = re.findall(r"```json\n(.*)\n```", RECORD)
    written = json.loads(example)
    assert encode_prompt(decode_prompt(written)) == written
    assert names(" ".join(rows("prompt"))) == set(written)


def test_every_field_of_a_trajectory_is_named():
    written: dict[str, Any] = encode_trajectory(TRAJECTORY)
    table = rows("trajectory")
    assert names(" ".join(key for key in table if "[]" not in key)) == set(written)
    [turn] = written["turns"]
    assert names(table["`turns`"]) == set(turn)
    assert names(table["`turns[].calls[]`"]) == set(turn["calls"][0])
    assert names(table["`turns[].results[]`"]) == set(turn["results"][0])
    assert names(table["`failures`"]) == set(written["failures"][0])
    assert names(table["`times`"]) == set(written["times"])
    assert names(table["`span`, `scored`"]) == set(written["span"])
    assert names(table["`termination`"]) == {str(termination) for termination in Termination}
