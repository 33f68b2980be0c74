"""Users for the jobs of each slot, where an ordinary user's judge may have any besides its own.

The kernel counts some things by user over the whole machine (pages of pipes, descriptors under way, what `epoll` watches), in
whatever namespace. So jobs that are all the judge's own user can take them from each other, and those that are users of
their own cannot. Root has users enough; an ordinary user gets them from the machine: a range in `/etc/subuid`, which
`newuidmap` hands out, or the capability CAP_SETUID, as a service manager gives it.
"""

import os
import pwd
import shutil
from dataclasses import dataclass

_RANGES = "/etc/subuid"
_ANY = range(2_001_000_000, 2_147_000_000)
"""Beyond what SSSD gives to accounts by default, and below what systemd keeps for users of other machines. From `2**31` on some
programs take them for negative.
"""
_CAP_SETUID = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUsers:
    """A range of users that jobs may be."""

    first: int
    count: int
    newuidmap: str | None
    """Path of the program that has the right to map them; absent: this process has it."""

    @property
    def described(self) -> str:
        """Say which they are and who gives them."""
        by = "CAP_SETUID" if self.newuidmap is None else f"newuidmap and {_RANGES}"
        return f"users {self.first} to {self.first + self.count - 1}, by {by}"


def first_user_of_any(num_slots: int) -> int:
    """Return the first of so many users for the slots of a judge that may be any user: others than those of other judges.

    RLIMIT_NPROC counts by user over all of a machine's containers, so the many processes of a program of one judge would
    keep the programs of another from starting, and its canaries would take that for a weaker machine. No judge knows of the
    others, so each draws its own out of more than 100 million.
    """
    return _draw_block(_ANY, num_slots)


def _draw_block(users: range, num_slots: int) -> int:
    """Return the first of so many users; two judges of the same size have either all of them in common, or none."""
    num_blocks = max(1, len(users) // max(1, num_slots))
    # Not by `secrets`: there are libraries behind it, which each job would be charged for.
    drawn = int.from_bytes(os.urandom(8), "big")
    return users.start + drawn % num_blocks * num_slots


def find_slot_users(num_slots: int) -> SlotUsers | None:
    """Return a user for each slot, if this ordinary user may have so many; that it can be had is yet to be tried."""
    if _may_be_any_user():
        return SlotUsers(first=first_user_of_any(num_slots), count=num_slots, newuidmap=None)
    newuidmap = shutil.which("newuidmap")
    if newuidmap is None:
        return None
    try:
        with open(_RANGES) as ranges:
            first = first_user_of(ranges.read(), own_names(), num_slots)
    except OSError:
        return None
    return None if first is None else SlotUsers(first=first, count=num_slots, newuidmap=newuidmap)


def first_user_of(ranges: str, names: set[str], num_slots: int) -> int | None:
    """Return the first of so many users, drawn as `first_user_of_any` does, for other judges of this user have the same range.

    Args:
        ranges: a file as subuid(5) describes it; the first range counts that is large enough, and for one of `names`.
        names: of this user.
        num_slots: how many.
    """
    for line in ranges.splitlines():
        name, _, numbers = line.strip().partition(":")
        first, _, size = numbers.partition(":")
        if name in names and first.isdecimal() and size.isdecimal() and int(size) >= num_slots:
            return _draw_block(range(int(first), int(first) + int(size)), num_slots)
    return None


def own_names() -> set[str]:
    """Return by what this user may be named: the number, and the name where there is an account."""
    uid = os.getuid()
    try:
        return {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        return {str(uid)}


def map_users_of(pid: int, own: int, users: SlotUsers) -> None:
    """Map this user to 0 and `users` to 1 and above in the user namespace that the process `pid` has just made.

    With `newuidmap` this process becomes that program, whose exit status tells.

    Raises:
        OSError: the kernel refuses, or there is no such program.
    """
    if users.newuidmap is not None:
        numbers = (pid, 0, own, 1, 1, users.first, users.count)
        os.execv(users.newuidmap, [users.newuidmap, *map(str, numbers)])
    with open(f"/proc/{pid}/uid_map", "w") as file:
        file.write(f"0 {own} 1\n1 {users.first} {users.count}\n")


def _may_be_any_user() -> bool:
    with open("/proc/self/status") as status:
        effective = next(line.split()[1] for line in status if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SETUID & 1)
