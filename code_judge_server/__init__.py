"""A judge for untrusted programs, served over HTTP: `python -m code_judge_server`.

An independent product that imports nothing of `agentrl`. The path of a request, each layer below the one before it:

    api (HTTP, `/v1/...`), compatible (the endpoints of other judges), sessions (Python sessions)
        -> queueing (waiting submissions, fair order, known verdicts)
            -> judging (compiling, running, checking: from outcomes to a verdict)
                -> sandbox (the interface to everything that runs a program)
                    -> jail_executor (the server's side of the jail) -> jail (inside it): tiers A to C
                    -> process_executor: tier D

`app` assembles these, `serving` runs them; `schemas` has the wire format, `settings` the operator's settings.
"""

__version__ = "0.1.0"
