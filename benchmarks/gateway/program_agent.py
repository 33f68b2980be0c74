"""An agent as a program, with nothing but Python's library: asks its question, and twice whether the policy is sure."""

import json
import sys
import time
import urllib.error
import urllib.request
from typing import Any

_NUM_CALLS = 3
_PAUSE_S = 0.2


def has_even_length(prompt: Any, turns: Any) -> float:
    """Return a reward by which the samples of a prompt differ."""
    return float(sum(len(turn.text) for turn in turns) % 2 == 0)


def main() -> None:
    """Play one episode."""
    task = json.load(sys.stdin)
    messages = task["messages"]
    for _ in range(_NUM_CALLS):
        body = json.dumps({"model": "policy", "messages": messages}).encode()
        request = urllib.request.Request(
            f"{task['base_url']}/chat/completions", body, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as response:
                messages.append(json.load(response)["choices"][0]["message"])
        except urllib.error.HTTPError as error:
            if error.code == 400:  # the context is full
                return
            raise
        messages.append({"role": "user", "content": "Are you sure?"})
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
