"""User namespaces, in which an ordinary user gets the rights to create the other namespaces."""

import os

from code_judge_server.jail.kernel import syscalls
from code_judge_server.jail.kernel.slot_users import SlotUsers, map_users_of

USER_INSIDE = 1000
"""User id that an ordinary user's jobs see as their own: not 0, as programs behave differently as root."""


def enter_user_namespace(*, as_user: int = 0) -> None:
    """Get every right in a new user namespace, in which this user is the only one, with the id `as_user`."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    _write("uid_map", f"{as_user} {uid} 1")
    _map_group(as_user, gid)


def enter_user_namespace_with(users: SlotUsers) -> None:
    """Get every right in a new user namespace, in which this user is 0, and `users` are 1 and above.

    Raises:
        OSError: the kernel refuses, or the users cannot be mapped.
    """
    uid, gid = os.geteuid(), os.getegid()
    entered, tell = os.pipe()
    mapper = os.fork()  # from outside: inside the new namespace this process has no right over other users
    if mapper == 0:
        try:
            os.close(tell)
            if os.read(entered, 1):
                map_users_of(os.getppid(), uid, users)
                os._exit(0)
        finally:
            os._exit(1)
    os.close(entered)
    with open(tell, "wb", buffering=0) as telling:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        telling.write(b"!")
    if os.waitpid(mapper, 0)[1] != 0:
        raise OSError(1, f"{users.described}: they cannot be mapped")
    _map_group(0, gid)


def become_slot_user(number: int) -> None:
    """Become one of the users that `enter_user_namespace_with` has mapped, without any right in that namespace."""
    os.setresuid(number, number, number)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # otherwise it may not open its own files in /proc


def _map_group(inside: int, gid: int) -> None:
    _write("setgroups", "deny")
    _write("gid_map", f"{inside} {gid} 1")


def _write(name: str, text: str) -> None:
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
