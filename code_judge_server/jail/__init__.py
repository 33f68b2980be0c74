"""The jail of tiers A to C: what runs below the server and starts, confines and ends jobs.

The server talks to one launcher and its slots as `protocol` says. `plan` is what it starts from, `canaries` what a
machine can do.

    server -> launcher (pid 1 of its namespace, builds the jail root) -> zygotes (preload modules) -> slots -> jobs
                                                                                               slot -> inits (pid 1
                                                                                               of each job)
"""
