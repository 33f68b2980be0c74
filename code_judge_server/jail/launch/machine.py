"""Resources of the machine's own namespaces that the launcher keeps when it leaves them."""

import os


class Machine:
    """Facts and descriptors from before the launcher left the machine's own namespaces; the descriptors stay open in launcher
    and zygotes.
    """

    def __init__(
        self,
        *,
        host_proc: int,
        seccomp: bytes,
        init: int | None,
        job_start: int | None,
        uids: list[int] | None,
        cgroup_version: int | None,
        cgroups: list[dict[str, int]],
        has_own_user_namespace: bool,
        slot_users: bool,
        work_folder: str | None,
        readable: list[str],
        shown_in_tmp: list[str],
    ) -> None:
        """Keep the given values.

        Args:
            host_proc: The machine's /proc, in which a process finds the id that the server knows it by.
            seccomp: BPF instructions.
            init: The compiled init, if there is one.
            job_start: The compiled start of jobs, if there is one.
            uids: User of each slot's jobs; None: the user of this process.
            cgroup_version: 1 or 2; None: there are no groups.
            cgroups: Open folders of each slot, keyed by controller.
            has_own_user_namespace: This process is root of a user namespace only.
            slot_users: The users 1 and above of that namespace are those of the slots.
            work_folder: Tier C: parent of the jobs' folders; None: there are namespaces.
            readable: Tier C: paths that jobs may read.
            shown_in_tmp: Folders below /tmp that every job sees in its own /tmp.
        """
        self.host_proc = host_proc
        self.seccomp = seccomp
        self.init = init
        self.job_start = job_start
        self.uids = uids
        self.cgroup_version = cgroup_version
        self.cgroups = cgroups
        self.has_own_user_namespace = has_own_user_namespace
        self.slot_users = slot_users
        self.work_folder = work_folder
        self.readable = readable
        self.shown_in_tmp = shown_in_tmp

    @property
    def jobs_are_own_users(self) -> bool:
        """Return whether the jobs of a slot have a user of their own."""
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
