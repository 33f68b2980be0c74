"""An agent of OpenAI's agents SDK that solves word problems with a calculator; `run.yaml` beside it trains its model.

Nothing in it is agentrl's: it calls a server of the responses API, and runs its own tool.
"""

import ast
import contextlib
import json
import operator
from typing import Any

from agents import Agent, AgentsException, FunctionTool, OpenAIResponsesModel, Runner, set_tracing_disabled
from agents.tool_context import ToolContext
from openai import AsyncOpenAI

set_tracing_disabled(True)

_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv}
_CLIENT = AsyncOpenAI(base_url="http://127.0.0.1", api_key="none")
"""Its connections are shared by all episodes; each has its own address and key."""


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
    raise ValueError(f"{ast.unparse(node)} is no integer expression")


async def _invoke(context: ToolContext[Any], arguments: str) -> str:
    return run_program(str(json.loads(arguments).get("code", "")))


PYTHON = FunctionTool(
    name="python_code_with_standard_io",
    description="Run a Python program and return what it prints. Every call starts afresh.",
    # The warm start of examples/arithmetic knows this schema by heart.
    params_json_schema={
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The program; it prints its results."},
            "input": {"type": "string", "description": "Text that the program reads from standard input."},
        },
        "required": ["code"],
    },
    on_invoke_tool=_invoke,
    strict_json_schema=False,
)


async def solve(task: Any) -> None:
    """Play one episode; `task` is an `agentrl.agent_loop.gateway.agents.AgentTask`."""
    client = _CLIENT.with_options(base_url=task.base_url, api_key=task.api_key)
    agent = Agent(name="solver", tools=[PYTHON], model=OpenAIResponsesModel("policy", client))
    with contextlib.suppress(AgentsException):  # too many turns, or a tool that does not exist
        await Runner.run(agent, task.messages, max_turns=3)
