"""The jail of tiers A to C: the processes below the server that start, confine and end jobs.

The server talks to one launcher and its slots by `protocol`. `plan` has the launcher's settings, `canaries` finds out what a
machine can do.

    server -> launcher (pid 1 of its namespace, builds the jail root) -> zygotes (preload modules) -> slots -> jobs
                                                                                               slot -> inits (pid 1
                                                                                               of each job)
"""
