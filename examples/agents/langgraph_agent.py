"""LangGraph with LangChain's model (`pip install langgraph langchain-openai`): `python langgraph_agent.py QUESTION`."""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.prebuilt import create_react_agent


@tool
def calc(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


agent = create_react_agent(ChatOpenAI(model="policy"), [calc])

if __name__ == "__main__":
    print(agent.invoke({"messages": [("user", sys.argv[1])]})["messages"][-1].content)
