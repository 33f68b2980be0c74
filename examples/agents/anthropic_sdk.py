"""Anthropic's SDK with a loop of its own: `python anthropic_sdk.py QUESTION`."""

import sys

from anthropic import Anthropic

CALC = {
    "name": "calc",
    "description": "Multiply two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def main(question: str) -> str:
    """Return the answer to a question."""
    client = Anthropic()
    messages = [{"role": "user", "content": question}]
    while True:
        answer = client.messages.create(model="policy", max_tokens=512, messages=messages, tools=[CALC])
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in answer.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": str(calc(**call.input))} for call in calls
        ]
        messages.append({"role": "user", "content": results})


if __name__ == "__main__":
    print(main(sys.argv[1]))
