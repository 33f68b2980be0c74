"""The ordinary user of programs if the judge is root: as root, programs could kill every process of the machine."""

import ctypes
import os
import sys
from dataclasses import dataclass

_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
"""Flag with which a change of user drops no capabilities, and access(2) reports the real permissions."""
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 47, 2
_CAP_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


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
            _checked(_libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0))
        os.setresuid(self.uid, self.uid, self.uid)
        if self.may_read_all:
            header, bit = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), 1 << _CAP_DAC_READ_SEARCH
            _checked(_libc.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)))
            _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_READ_SEARCH, 0, 0))

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


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
