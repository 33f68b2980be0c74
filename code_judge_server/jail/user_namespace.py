"""A user namespace: how an ordinary user gets the rights to make the others."""

import os

from code_judge_server.jail import syscalls

USER_INSIDE = 1000
"""What an ordinary user's jobs see as their own user id: not 0, as programs that find themselves root act otherwise."""


def enter_user_namespace(*, as_user: int = 0) -> None:
    """Get every right in a new user namespace, in which this user is the only one, under the number `as_user`.

    Raises:
        OSError: the kernel refuses.
    """
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{as_user} {uid} 1"), ("gid_map", f"{as_user} {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
