"""The server's side of tiers A, B and C: an `Executor` that runs jobs inside the jail.

    server ── socket ──> launcher (`code_judge_server.jail`, one)
       │                     └─ forks a zygote per set of preloaded modules, and from it one slot per number
       └──── socket ──> slot (number, preload) ──> init of a fresh jail ──> job

`executor` has the slots, and replaces dead ones; `launcher` and `slot` are the server's ends of the sockets; `running_job` is
one job from its start to its outcome, `sealed_files` its input, `output_stream` its output, `meters` its resources as counted
by the kernel, `watch` the clock that all jobs share, `messages` the messages that may arrive; `private_slot`
is for sessions.

Neither a job's output nor its behaviour decides its outcome, but the wait status, the kernel's counters, the bytes read from
pipes that this process owns, and the clock. No content of a job passes through launcher or slot, only descriptors.
"""
