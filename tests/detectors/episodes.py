"""Episodes for the tests of detectors: the demo's form, with any texts."""

import json

from agentrl.types import Prompt, Termination, ToolCall, ToolResult, ToolStatus, Trajectory, Turn

SYSTEM = "Solve the problem. You may run Python. End with <answer>\\boxed{number}</answer>."
TOOL = "python_code_with_standard_io"


def asked(question: str) -> Prompt:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return Prompt(prompt_id="p", messages=messages, answer="41")


PROMPT = asked("A shop has 996 stamps and sells 955. How many stamps are left?")


def called(
    code: str, output: str = "", status: ToolStatus = ToolStatus.OK, *, text: str = "", argument: str = "code"
) -> Turn:
    """A turn with one call; `output` is what its program printed."""
    arguments = {argument: code}
    words = f"{text}<tool_call>\n{json.dumps({'name': TOOL, 'arguments': arguments})}\n</tool_call>"
    answer = f"success\nstdout:\n{output}" if status is ToolStatus.OK else f"failure: exit code 1\nstderr:\n{output}"
    return Turn(
        text=words,
        calls=(ToolCall(call_id="0", name=TOOL, arguments=arguments),),
        results=(ToolResult(status=status, text=answer),),
    )


def answered(value: str, text: str = "") -> Turn:
    return Turn(text=f"{text}<answer>\\boxed{{{value}}}</answer>")


def episode(*turns: Turn, name: str = "1-p-0", reward: float | None = 0.0, num_tokens: int = 1) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        prompt_id="p",
        sample_index=0,
        token_ids=[7] * num_tokens,
        num_prompt_tokens=0,
        response_mask=[1] * num_tokens,
        rollout_logprobs=[-0.5] * num_tokens,
        version_spans=((0, 0),),
        turns=turns,
        termination=Termination.ANSWERED,
        reward=reward,
    )
