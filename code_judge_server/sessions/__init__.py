"""Python sessions: cells that run one after the other on the memory that earlier ones left, with rollback and branches.

`schemas` has the formats of `/v1/sessions`. A session is one long job in a slot of its own, whose program is
`jail.session_main`; the server chooses the cell, enforces its limits, and reads its output.

    api -> manager (number and lifetime) -> session (snapshots, one cell at a time) -> session_job (the job in its slot)
"""
