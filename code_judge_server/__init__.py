"""A judge for untrusted programs, served over HTTP: `python -m code_judge_server`.

A product of its own that imports nothing of `agentrl`. From the request to the program, each room below the one before it:

    api (HTTP, `/v1/...`), compatible (the endpoints of other judges), sessions (Python sessions)
        -> queueing (what waits, who is next, what was judged already)
            -> judging (compiling, running, checking: from outcomes to a verdict)
                -> sandbox (the one door to whatever runs a program)
                    -> jail_executor (the server's side of the jail) -> jail (inside it): tiers A to C
                    -> process_executor: tier D

`app` puts these together, `serving` runs them; `schemas` has what the judge speaks, `settings` what an operator may say.
"""

__version__ = "0.1.0"
