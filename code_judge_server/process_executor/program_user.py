"""The ordinary user of programs if the judge is root: as root, programs could kill every process of the machine."""

import os
import sys
from dataclasses import dataclass

from code_judge_server.jail.kernel import syscalls

_SECBIT_NO_SETUID_FIXUP = 1 << 2
"""Flag with which a change of user drops no capabilities, and access(2) reports the real permissions."""
_CAP_DAC_READ_SEARCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramUser:
    """A user without an account, one per slot."""

    uid: int
    may_read_all: bool
    """Keep root's right to read any file, because only root may read the interpreter or the folder of programs."""

    def become(self) -> None:
        """Give this process the user, for good."""
        os.setgroups([])
        os.setresgid(self.uid, self.uid, self.uid)
        if self.may_read_all:
            syscalls.prctl(syscalls.PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
        os.setresuid(self.uid, self.uid, self.uid)
        if self.may_read_all:
            syscalls.keep_only_capability(_CAP_DAC_READ_SEARCH)

    def give(self, folder: str) -> None:
        """Make the user the owner of a folder and everything below it, which no other user has used yet."""
        os.chown(folder, self.uid, self.uid)
        for path, folders, files in os.walk(folder):
            for name in (*folders, *files):
                os.chown(os.path.join(path, name), self.uid, self.uid, follow_symlinks=False)


def find_program_user(uid: int, folder: str) -> ProgramUser | None:
    """Return the user of the programs below `folder`; None if this process is not root and programs keep its user.

    Raises:
        SystemExit: programs cannot run as another user.
    """
    if os.geteuid() != 0:
        return None
    for may_read_all in (False, True):
        user = ProgramUser(uid=uid, may_read_all=may_read_all)
        if _can_run_python(user, folder):
            return user
    raise SystemExit(
        f"code judge: tier D of root: programs cannot run {sys.executable} as an ordinary user. Start the judge as one"
    )


def _can_run_python(user: ProgramUser, folder: str) -> bool:
    pid = os.fork()
    if pid == 0:
        try:
            user.become()
            os.chdir(folder)
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-c", ""])
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
