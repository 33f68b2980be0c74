"""Resources of the machine's own namespaces that the launcher keeps when it leaves them."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts and descriptors from before the launcher left the machine's own namespaces; the descriptors stay open in launcher
    and zygotes.
    """

    host_proc: int
    """The machine's /proc, in which a process finds the id that the server knows it by."""
    seccomp: bytes
    """BPF instructions."""
    fast_path: bool
    """See `plan.Plan`."""
    init: int | None
    job_start: int | None
    """The compiled init and start of jobs, if there are any."""
    uids: list[int] | None
    """User of each slot's jobs; None: the user of this process."""
    cgroup_version: int | None
    """1 or 2; None: there are no groups."""
    cgroups: list[dict[str, int]]
    """Open folders of each slot, keyed by controller."""
    has_own_user_namespace: bool
    """This process is root of a user namespace only."""
    slot_users: bool
    """The users 1 and above of that namespace are those of the slots."""
    work_folder: str | None
    """Tier C: parent of the jobs' folders; None: there are namespaces."""
    readable: list[str]
    """Tier C: paths that jobs may read."""
    shown_in_tmp: list[str]
    """Folders below /tmp that every job sees in its own /tmp."""

    @property
    def jobs_are_own_users(self) -> bool:
        """True if the jobs of a slot have a user of their own."""
        return self.uids is not None or self.slot_users

    def pid_as_server_sees_it(self) -> int:
        """Return this process's id in the pid namespace of the server."""
        return int(os.readlink("self", dir_fd=self.host_proc))

    def close(self) -> None:
        """Close the descriptors in a slot that has entered its group."""
        opened = [self.host_proc, *(folder for group in self.cgroups for folder in group.values())]
        for descriptor in (*opened, self.init, self.job_start):
            if descriptor is not None:
                os.close(descriptor)
