"""What waits for a slot: bounded, fair between clients, each submission judged once however often it is sent.

`queue` is the door for all endpoints, `scheduler` says who is next (`fair_queue`, by the `run_times` it has seen),
`idempotency` knows what was judged, `shared_capacity` how much all clients together may hold.
"""
