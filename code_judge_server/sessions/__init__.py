"""Python sessions: cells that run one after the other from what earlier ones left in memory, with rollback and branches.

`schemas` has the formats of `/v1/sessions`. A session is one long job in a slot of its own, whose program is
`jail.session_main`; the server says which cell runs, holds its limits, and reads its output.

    api -> manager (how many, and for how long) -> session (snapshots, one cell at a time) -> session_job (the job in its slot)
"""
