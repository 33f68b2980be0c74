"""An agent as a program, with nothing but Python's library: it solves a word problem with a calculator.

It takes one argument, a file to which it appends a line for every call: the event, its process, the worker's, the prompt.
"""

import ast
import json
import operator
import os
import sys
import time
import urllib.error
import urllib.request
from enum import StrEnum
from typing import Any

AGENT_MODULE = "benchmarks.gateway.program_agent"
# The warm start of examples/arithmetic knows this schema by heart.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "python_code_with_standard_io",
        "description": "Run a Python program and return what it prints. Every call starts afresh.",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The program; it prints its results."},
                "input": {"type": "string", "description": "Text that the program reads from standard input."},
            },
            "required": ["code"],
        },
    },
}
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
_PAUSE_S = 0.2


class CallEvent(StrEnum):
    """Moment of a call."""

    ASKED = "asked"
    """The agent sends it."""
    ANSWERED = "answered"
    """The agent has the answer."""


def main(calls_file: str) -> None:
    """Play one episode."""
    task = json.load(sys.stdin)
    messages = task["messages"]
    calls = os.open(calls_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(event: CallEvent) -> None:
        os.write(calls, f"{event} {os.getpid()} {os.getppid()} {task['prompt_id']}\n".encode())

    while True:
        note(CallEvent.ASKED)
        try:
            message = _answer(task["base_url"], messages)
        except urllib.error.HTTPError as error:
            if error.code == 400:  # the context is full
                return
            raise
        note(CallEvent.ANSWERED)
        time.sleep(_PAUSE_S)
        if not message.get("tool_calls"):
            return
        messages.append(message)
        for call in message["tool_calls"]:
            text = run_program(str(json.loads(call["function"]["arguments"]).get("code", "")))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


def _answer(base_url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = json.dumps({"model": "policy", "messages": messages, "tools": [TOOL]}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)["choices"][0]["message"]


def run_program(code: str) -> str:
    """Run a program that prints an integer expression, the only kind that this agent runs."""
    try:
        match ast.parse(code).body:
            case [ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=[expression], keywords=[]))]:
                return f"success\nstdout:\n{_value(expression)}"
            case _:
                raise ValueError("only print(EXPRESSION) can be run")
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        return f"failure: exit code 1\nstderr:\n{type(error).__name__}: {error}"


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as number):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left), _value(right))
    raise ValueError("not an integer expression")


if __name__ == "__main__":
    main(sys.argv[1])
