"""The OpenAI SDK with a loop of its own: `python openai_sdk.py QUESTION`."""

import json
import sys

from openai import OpenAI

CALC = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Multiply two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def main(question: str) -> str:
    """Return the answer to a question."""
    client = OpenAI()
    messages = [{"role": "user", "content": question}]
    while True:
        answer = client.chat.completions.create(model="policy", messages=messages, tools=[CALC]).choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            return answer.content or ""
        for call in answer.tool_calls:
            result = calc(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(result)})


if __name__ == "__main__":
    print(main(sys.argv[1]))
