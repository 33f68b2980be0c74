"""Users for the jobs of each slot, where the judge of an ordinary user may use users besides its own.

The kernel counts some things by user over the whole machine (pages of pipes, descriptors in flight, `epoll` watches), across
all namespaces. So jobs that have the judge's own user can exhaust them for each other, and jobs with users of their own
cannot. Root has users enough; an ordinary user gets them from the machine: a range in `/etc/subuid`, assigned by `newuidmap`,
or the capability CAP_SETUID, from a service manager.
"""

import os
import pwd
import shutil
from dataclasses import dataclass

_RANGES = "/etc/subuid"
_ANY = range(2_001_000_000, 2_147_000_000)
"""Ids above those that SSSD gives to accounts by default, and below those that systemd reserves for other machines' users. Some
programs treat ids from `2**31` on as negative.
"""
_CAP_SETUID = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUsers:
    """A range of users for jobs."""

    first: int
    count: int
    newuidmap: str | None
    """Path of the program that may map them; None: this process may."""

    @property
    def described(self) -> str:
        """Return a description of the users and their source."""
        by = "CAP_SETUID" if self.newuidmap is None else f"newuidmap and {_RANGES}"
        return f"users {self.first} to {self.first + self.count - 1}, by {by}"


def first_user_of_any(num_slots: int) -> int:
    """Return the first of `num_slots` user ids for a judge that may use any, different from those of other judges.

    RLIMIT_NPROC counts by user over all containers of a machine, so many processes of one judge's program would keep another
    judge's programs from starting, and its canaries would report a weaker machine. Judges do not know each other, so each draws
    its own ids out of more than 100 million.
    """
    return _draw_block(_ANY, num_slots)


def _draw_block(users: range, num_slots: int) -> int:
    """Return the first of `num_slots` ids; two judges of the same size have either all of them in common, or none."""
    num_blocks = max(1, len(users) // max(1, num_slots))
    # Not by `secrets`: it loads libraries that would be charged to each job.
    drawn = int.from_bytes(os.urandom(8), "big")
    return users.start + drawn % num_blocks * num_slots


def find_slot_users(num_slots: int) -> SlotUsers | None:
    """Return a user for each slot, if this ordinary user may have that many; they are not tested yet."""
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
    """Return the first of `num_slots` ids in the first range of a subuid(5) file that is large enough and for one of `names`.
    It is drawn as by `first_user_of_any`, as other judges of this user have the same range.
    """
    for line in ranges.splitlines():
        name, _, numbers = line.strip().partition(":")
        first, _, size = numbers.partition(":")
        if name in names and first.isdecimal() and size.isdecimal() and int(size) >= num_slots:
            return _draw_block(range(int(first), int(first) + int(size)), num_slots)
    return None


def own_names() -> set[str]:
    """Return the names of this user: the number, and the account's name if there is one."""
    uid = os.getuid()
    try:
        return {str(uid), pwd.getpwuid(uid).pw_name}
    except KeyError:
        return {str(uid)}


def map_users_of(pid: int, own: int, users: SlotUsers) -> None:
    """Map this user to 0 and `users` to 1 and above in the user namespace that the process `pid` has just created.

    With `newuidmap` this process becomes that program, whose exit status shows the result.
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
