"""Streamed answers, read with an SDK: `python streams.py NAME ...`; prints `NAME: ANSWER` lines."""

import asyncio
import inspect
import json
import sys

import anthropic
import openai
from agents import Agent, Runner, set_tracing_disabled
from agents import function_tool as agents_tool
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent
from pydantic_ai import Agent as PydanticAgent
from smolagents import OpenAIModel, ToolCallingAgent
from smolagents import tool as smolagents_tool

set_tracing_disabled(True)

TOOL = {
    "name": "calc",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
QUESTION = [{"role": "user", "content": "What is 431 * 27?"}]


def calc(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a * b


def chat_completions() -> str:
    client = openai.OpenAI()
    tools = [{"type": "function", "function": TOOL}]
    with client.chat.completions.stream(
        model="policy", messages=QUESTION, tools=tools, stream_options={"include_usage": True}
    ) as events:
        for _ in events:
            pass
        final = events.get_final_completion()
    message = final.choices[0].message
    call = message.tool_calls[0].function
    return (
        f"{message.content} {call.name}{call.arguments} {final.choices[0].finish_reason} {final.usage.total_tokens > 0}"
    )


def responses() -> str:
    with openai.OpenAI().responses.stream(
        model="policy", input=QUESTION, tools=[{"type": "function", **TOOL}]
    ) as events:
        for _ in events:
            pass
        final = events.get_final_response()
    call = final.output[-1]
    return f"{final.output_text} {call.name}{call.arguments} {final.status} {final.usage.total_tokens > 0}"


def completions() -> str:
    chunks = openai.OpenAI().completions.create(model="policy", prompt="2 + 2 =", stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks)


def messages() -> str:
    tools = [{"name": "calc", "input_schema": TOOL["parameters"]}]
    with anthropic.Anthropic().messages.stream(
        model="policy", max_tokens=512, messages=QUESTION, tools=tools
    ) as events:
        final = events.get_final_message()
    text, call = final.content[-2:]
    return f"{text.text} {call.name}{json.dumps(call.input)} {final.stop_reason} {final.usage.output_tokens > 0}"


def refusals() -> str:
    picture = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/picture.png"}}
    try:
        openai.OpenAI().chat.completions.create(model="policy", messages=QUESTION, n=2)
    except openai.BadRequestError as refused:
        field = refused.param
    try:
        anthropic.Anthropic().messages.create(
            model="policy", max_tokens=512, messages=[{"role": "user", "content": [picture]}]
        )
    except anthropic.BadRequestError as refused:
        return f"{field} {refused.body['error']['message']}"


async def openai_agents() -> str:
    run = Runner.run_streamed(Agent(name="a", tools=[agents_tool(calc)], model="policy"), QUESTION[0]["content"])
    async for _ in run.stream_events():
        pass
    return run.final_output


async def pydantic_ai() -> str:
    async with PydanticAgent("openai-chat:policy", tools=[calc]).run_stream(QUESTION[0]["content"]) as run:
        return await run.get_output()


def langgraph() -> str:
    agent = create_react_agent(ChatOpenAI(model="policy", streaming=True), [langchain_tool(calc)])
    *_, last = agent.stream({"messages": QUESTION}, stream_mode="values")
    return last["messages"][-1].content


def smolagents() -> str:
    agent = ToolCallingAgent(
        tools=[smolagents_tool(calc)], model=OpenAIModel("policy"), max_steps=3, stream_outputs=True
    )
    return agent.run(QUESTION[0]["content"])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        function = globals()[name]
        answer = asyncio.run(function()) if inspect.iscoroutinefunction(function) else function()
        print(f"{name}: {answer}")
