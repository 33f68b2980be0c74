"""Pydantic AI (`pip install 'pydantic-ai-slim[openai]'`): `python pydantic_ai_agent.py QUESTION`."""

import sys

from pydantic_ai import Agent

agent = Agent("openai-chat:policy", instructions="Use the tool.")


@agent.tool_plain
def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


if __name__ == "__main__":
    print(agent.run_sync(sys.argv[1]).output)
