"""The server's side of tiers A, B and C: an `Executor` that has jobs run inside the jail.

    server ── socket ──> launcher (`code_judge_server.jail`, one)
       │                     └─ forks a zygote per set of preloaded modules, and from it one slot per number
       └──── socket ──> slot (number, preload) ──> init of a fresh jail ──> job

`executor` has the slots, and rebuilds what dies; `launcher` and `slot` are the other ends of the sockets; `running_job` is
one job from its start to its outcome, `sealed_files` what goes into it, `output_stream` what comes out, `meters` what the
kernel says it uses, `watch` the one clock that all of them share, `messages` what may arrive here; `private_slot` and
`peak_memory` are for sessions.

Nothing that a job prints or does decides its outcome: that is the wait status, the kernel's counters, the bytes read from pipes
that this process owns, and the clock. No content of a job passes through launcher or slot, only descriptors.
"""
