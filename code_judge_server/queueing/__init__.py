"""The queue for slots: bounded, fair between clients, and judging each submission once however often it is sent.

`queue` is the interface for all endpoints, `scheduler` chooses the next run (by `fair_queue` and past `run_times`),
`idempotency` finds known verdicts, `shared_capacity` bounds what all clients together may hold.
"""
