"""Commands run as an ordinary user from tests that run as root.

    Popen(as_ordinary_user([sys.executable, "-m", "code_judge_server"], folder=tmp_path))

The command replaces this process: same process id, same descriptors. It has no capabilities, and a user id that no account has,
as in a container. The interpreter, the checkout and `folder` stay reachable where they lie below folders that only root may
enter (`/root`, pytest's own): in a private mount namespace such a folder is replaced by one that holds nothing but them.
Tests that run as an ordinary user themselves start the command as it is.
"""

import ctypes
import os
import sys
from collections.abc import Sequence
from pathlib import Path

_FIRST_USER_ID = 100_000

_CHECKOUT = Path(__file__).resolve().parents[2]
_CLONE_NEWNS = 0x20000
_MS_BIND = 0x1000
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_SETUID = 7
_CAPABILITY_VERSION_3 = 0x20080522
_MS_REC = 0x4000
_MS_SLAVE = 0x80000


def as_ordinary_user(command: Sequence[str], *, folder: Path, may_set_uid: bool = False) -> list[str]:
    """Return the command that runs `command` as an ordinary user, who owns `folder`, with CAP_SETUID if requested."""
    if os.getuid() != 0:
        return list(command)
    os.chown(folder, user_id(), user_id())
    return [sys.executable, __file__, str(user_id()), str(folder), "may-set-uid" if may_set_uid else "", *command]


def user_id() -> int:
    """Return the id of the user, and of its group, that belongs to this test process alone."""
    return _FIRST_USER_ID + os.getpid() if os.getuid() == 0 else os.getuid()


def become_ordinary_user(number: int, *, reachable: Sequence[Path], may_set_uid: bool = False) -> None:
    """Drop every right of root's in this process, but keep `reachable` accessible."""
    working_folder = Path.cwd()
    _libc("unshare", _CLONE_NEWNS)
    _mount(None, Path("/"), flags=_MS_REC | _MS_SLAVE)
    for closed_folder, trees in _below_closed_folders(reachable).items():
        _open_up(closed_folder, trees)
    os.setgroups([])
    os.setresgid(number, number, number)
    if may_set_uid:
        _libc("prctl", _PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setresuid(number, number, number)
    if may_set_uid:
        _keep_only(_CAP_SETUID)
    os.chdir(working_folder if os.access(working_folder, os.X_OK) else "/")


def _keep_only(capability: int) -> None:
    """Keep one capability and no other, also in programs that this process executes."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bits = 1 << capability
    _libc("capset", header, (ctypes.c_uint32 * 6)(bits, bits, bits, 0, 0, 0))
    _libc("prctl", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def _below_closed_folders(paths: Sequence[Path]) -> dict[Path, list[Path]]:
    kept_paths: dict[Path, list[Path]] = {}
    for path in sorted({path.resolve() for path in paths}):
        closed = next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)
        if closed is not None and not any(path.is_relative_to(tree) for tree in kept_paths.get(closed, [])):
            kept_paths.setdefault(closed, []).append(path)
    return kept_paths


def _open_up(closed_folder: Path, trees: list[Path]) -> None:
    held = {tree: os.open(tree, os.O_PATH) for tree in trees}
    _mount("tmpfs", closed_folder, kind="tmpfs", data="mode=0755,size=1m")
    for tree, descriptor in held.items():
        tree.mkdir(parents=True)
        _mount(f"/proc/self/fd/{descriptor}", tree, flags=_MS_BIND | _MS_REC)
        os.close(descriptor)


def _mount(
    source: str | None, target: Path, *, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    words = [None if word is None else word.encode() for word in (source, str(target), kind, data)]
    _libc("mount", *words[:3], ctypes.c_ulong(flags), words[3])


def _libc(name: str, *arguments: object) -> None:
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{arguments}: {os.strerror(number)}")


def _main() -> None:
    number, folder, may_set_uid, *command = sys.argv[1:]
    os.umask(0o022)
    become_ordinary_user(
        int(number),
        reachable=[Path(sys.prefix), Path(sys.base_prefix), _CHECKOUT, Path(folder)],
        may_set_uid=bool(may_set_uid),
    )
    os.execvpe(command[0], command, os.environ | {"HOME": folder})


if __name__ == "__main__":
    _main()
