"""OpenAI's agents SDK (`pip install openai-agents`): `python openai_agents.py QUESTION`."""

import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled

set_tracing_disabled(True)  # else every run is sent to OpenAI, with the key of the episode


@function_tool
def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


agent = Agent(name="calculator", instructions="Use the tool.", tools=[calc], model="policy")

if __name__ == "__main__":
    print(Runner.run_sync(agent, sys.argv[1]).final_output)
