"""Agents of a user, for the worker's tests: functions, and programs by `python -m`."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any

from agentrl.agent_loop.gateway.agents import AgentTask


def ask(url: str, question: str) -> str:
    """Call the policy as any HTTP client would."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": question}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)["choices"][0]["message"]["content"]


def answer(task: AgentTask) -> None:
    """Ask once."""
    ask(task.session_url, f"{task.prompt} {task.extra.get('hint', '')}")


async def answer_and_grade(task: AgentTask) -> dict[str, Any]:
    """Ask once, and return a reward."""
    import asyncio

    text = await asyncio.to_thread(ask, task.session_url, task.prompt)
    return {"score": 0.25, "length": len(text)}


def raises(task: AgentTask) -> None:
    """Ask, and raise."""
    ask(task.session_url, task.prompt)
    raise KeyError("city")


def main() -> None:
    """Play an episode as a program; the first argument says how."""
    task = json.load(sys.stdin)
    ask(os.environ["AGENTRL_SESSION"], task["prompt"])
    if sys.argv[1] == "fails":
        print("Traceback: none\nValueError: no such city", file=sys.stderr)
        sys.exit(3)
    if sys.argv[1] == "is killed":
        os.kill(os.getpid(), 9)
    if sys.argv[1] == "leaves a child":
        child = subprocess.Popen(["sleep", "60"], stderr=subprocess.DEVNULL)
        with open(sys.argv[2], "w") as file:
            file.write(str(child.pid))
    if sys.argv[1] == "hangs":
        time.sleep(60)


if __name__ == "__main__":
    main()
