import json
from typing import Any

import pytest

from agentrl.agent_loop.gateway.protocols import openai_completions
from agentrl.agent_loop.gateway.protocols.base import RequestError
from tests.agent_loop.gateway.protocols.scripted_gateway import reply


def test_a_prompt_is_continued_as_text():
    call = openai_completions.read({"prompt": ["2 + 2 ="], "max_tokens": 4, "stop": ["\n"], "temperature": 0, "n": 1})
    assert (call.prompt, call.messages, call.max_tokens, call.stop) == ("2 + 2 =", [], 4, ("\n",))
    assert call.ignored == ("temperature",)
    assert openai_completions.write(reply(" 4"))["choices"][0]["text"] == " 4"


def test_the_stream_ends_with_the_counts():
    call = openai_completions.read({"prompt": "2", "stream": True, "stream_options": {"include_usage": True}})
    text, counts, done = openai_completions.events(reply(" 4"), call)
    assert json.loads(text.removeprefix("data: "))["choices"][0] == {
        "index": 0,
        "text": " 4",
        "finish_reason": "stop",
        "logprobs": None,
    }
    assert json.loads(counts.removeprefix("data: "))["usage"]["total_tokens"] == 17
    assert done == "data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_what_a_policy_in_training_cannot_give_is_refused_by_name(fields: dict[str, Any], field: str):
    with pytest.raises(RequestError) as refused:
        openai_completions.read({"prompt": "2 + 2 ="} | fields)
    assert refused.value.field == field
