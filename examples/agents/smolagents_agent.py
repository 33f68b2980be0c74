"""smolagents (`pip install 'smolagents[openai]'`): `python smolagents_agent.py QUESTION`."""

import sys

from smolagents import OpenAIModel, ToolCallingAgent, tool


@tool
def calc(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a * b


agent = ToolCallingAgent(tools=[calc], model=OpenAIModel(model_id="policy"), max_steps=4)

if __name__ == "__main__":
    print(agent.run(sys.argv[1]))
