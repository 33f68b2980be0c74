"""The change of a freshly forked child of a warm interpreter into `python main.py`.

Neither the program nor its output may show a difference: see the corpus of tests/code_judge_server/parity. It is read and
compiled by the interpreter's own `PyRun_FileExFlags`, so encodings and syntax errors are those of a file.

The forking interpreter must have been started like the one it replaces: same environment (the hash seed is fixed at its start),
no `-I` or `-S`; and it must have called `preload.load`, which calls `prepare`. The kernel copies each page that a child writes
to, which is most of a child's cost: so everything possible is prepared before the fork.
"""

import contextlib
import ctypes
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from io import TextIOWrapper
from types import ModuleType
from typing import NoReturn

from code_judge_server.jail.python import hidden_frames, python_errors, python_exit
from code_judge_server.jail.python.hidden_frames import BUILTINS as __builtins__  # noqa: F401 - for the functions below
from code_judge_server.jail.python.hidden_frames import python_api

_modules = sys.modules
_FILE_INPUT = 257
"""`Py_file_input`."""
_CANNOT_OPEN = 2
_OWN_PACKAGE = "code_judge_server"
_NUM_REHEARSALS = 20
"""CPython rewrites bytecode at its 8th execution, and again as it learns the types it meets."""
_REHEARSED = b"""
import sys
def double(items):
    return [2 * item for item in items if item is not None]
class Pair:
    def __init__(self, first, second):
        self.first = first
        self.second = second
try:
    total = sum(double([1, 2, 3])) + int("4")
    table = {str(number): number ** 2 for number in range(10)}
    print(f"{total:5d} {total / 3:.2f} {Pair(1, 2).first}", ", ".join(sorted(table)), table)
    for line in sys.stdin:
        table[line] = [int(word) for word in input().split()]
    table[0]
except KeyError as error:
    str(error)
"""


class _Prepared:
    """Objects created before the fork."""

    __slots__ = (
        "file_name", "fopen", "loader", "main", "own_modules", "ready_for", "refresh", "run_file", "stack", "variables",
    )  # fmt: skip

    def __init__(self, refresh: Sequence[Callable[[], object]], *, hide_frames: bool) -> None:
        self.refresh = refresh
        self.ready_for: tuple[list[str], str] | None = None
        self.file_name = b""
        self.variables: dict[str, object] = {}
        self.stack = hidden_frames.measure(hide=hide_frames)
        self.fopen = python_api.fopen
        self.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self.fopen.restype = ctypes.c_void_p
        python_api.fdopen.argtypes = [ctypes.c_int, ctypes.c_char_p]
        python_api.fdopen.restype = ctypes.c_void_p
        self.run_file = python_api.PyRun_FileExFlags
        self.run_file.argtypes = [
            ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.py_object, ctypes.py_object, ctypes.c_int, ctypes.c_void_p,
        ]  # fmt: skip
        self.run_file.restype = ctypes.py_object
        names = [name for name in sys.modules if name.partition(".")[0] == _OWN_PACKAGE]
        self.own_modules = [sys.modules.pop(name) for name in names]  # kept, so that no child frees them
        self.make_main()

    def make_main(self) -> None:
        """Create a module for the program, and its loader."""
        self.loader = SourceFileLoader("__main__", "")
        self.main = ModuleType("__main__")

    def take_variables(self) -> dict[str, object]:
        """Return the variables of the program; nothing here may keep a reference, so that they end with it."""
        variables, self.variables = self.variables, {}
        return variables


_prepared: _Prepared | None = None


def prepare(refresh: Sequence[Callable[[], object]], *, hide_frames: bool = True) -> None:
    """Do everything possible before the fork; afterwards no module of this package can be imported any more.

    Args:
        refresh: Called in each child: reseeds generators that would give every program the same numbers, for example.
        hide_frames: See `hidden_frames`.
    """
    global _prepared
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    python_exit.prepare()
    _prepared = _Prepared(refresh, hide_frames=hide_frames)
    gc.collect()
    gc.freeze()  # otherwise the end of each rehearsal would scan all objects
    with _stand_ins():
        for _ in range(_NUM_REHEARSALS):
            _open_streams()
            _rehearse(_prepared)
        _open_streams()


def freeze() -> None:
    """Exclude all current objects from garbage collection in this process and its children for good."""
    assert _prepared is not None
    gc.collect()
    gc.freeze()
    _prepared.make_main()  # not frozen: the interpreter frees it at its end, and with it the program's objects


def fork() -> int:
    """Fork like `os.fork`, but without the hooks that modules have registered: they cost more than the fork itself.

    Only for a process with a single thread, whose locks are therefore all free.
    """
    return python_api.fork()


def get_ready(argv: list[str], folder: str) -> None:
    """Do the first part of `run`; for the same command in the same folder, `run` continues from here."""
    if _prepared is None:
        raise RuntimeError("python_main: `prepare` was not called")
    if _prepared.ready_for:  # another command
        sys.path.pop(0)
        _prepared.make_main()
    _prepared.ready_for = argv, folder
    path = argv[1]
    file_name = os.path.abspath(path) if "/" in path else f"{folder}/{path}"
    sys.argv = argv[1:]
    sys.orig_argv = argv
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)) if "/" in path else folder)
    _prepared.file_name = file_name.encode("utf-8", "surrogateescape")
    _prepared.variables = _enter_main(_prepared, file_name)


def run(argv: list[str]) -> NoReturn:
    """Become `argv`, the command `python main.py ...`, in this process, and end it.

    Standard descriptors (a file or memfd, and two pipes) and working folder are in place, no exception is being handled; the
    script is not a link.
    """
    ready = (argv, os.getcwd())
    if _prepared is None or _prepared.ready_for != ready:
        get_ready(*ready)
    assert _prepared is not None
    for refresh in _prepared.refresh:
        refresh()
    stack = _prepared.stack
    file = _prepared.fopen(_prepared.file_name, b"rb")
    if not file:
        name = os.fsdecode(_prepared.file_name)
        sys.stderr.write(f"{argv[0]}: can't open file {name!r}: [Errno 2] No such file or directory\n")
        python_exit.finish(_CANNOT_OPEN, interrupted=False, stack=stack)
    gc.enable()
    error = _run_file(_prepared, file, _prepared.file_name, _prepared.take_variables())
    exit_code = python_errors.report(error, stack)
    if not issubclass(type(error), SystemExit):
        _leave_main()
    interrupted = type(error) is KeyboardInterrupt
    del error
    python_exit.finish(exit_code, interrupted=interrupted, stack=stack)


@contextlib.contextmanager
def _stand_ins() -> Iterator[None]:
    """Replace the outputs by pipes, and the input by a memfd, as in a job."""
    saved = [os.dup(fd) for fd in range(3)]
    reader, writer = os.pipe()
    source = os.memfd_create("stdin")
    for fd, stand_in in enumerate((source, writer, writer)):
        os.dup2(stand_in, fd)
    yield
    for fd, original in enumerate(saved):
        os.dup2(original, fd)
    for fd in (*saved, reader, writer, source):
        os.close(fd)


def _open_streams() -> None:
    """Open the standard streams as the interpreter does at its start (`create_stdio` in Python/pylifecycle.c).

    They remember whether they can seek, so their files at this moment matter.
    """
    settings = [(stream.encoding, stream.errors) for stream in (sys.stdin, sys.stdout, sys.stderr)]
    for fd, (name, (encoding, errors)) in enumerate(zip(("stdin", "stdout", "stderr"), settings, strict=True)):
        buffered = open(fd, "wb" if fd else "rb", closefd=False)  # noqa: SIM115 - it stays open
        buffered.raw.name = f"<{name}>"  # pyright: ignore[reportAttributeAccessIssue] - it is buffered
        text = TextIOWrapper(buffered, encoding, errors, "\n", line_buffering=name == "stderr")
        text.mode = "w" if fd else "r"  # pyright: ignore[reportAttributeAccessIssue] - as the interpreter does
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def _rehearse(prepared: _Prepared) -> None:
    """Do what each child does, up to its end, so that no child has to write these caches and bytecode."""
    before = sys.modules["__main__"]
    script = os.memfd_create("script")
    os.write(script, _REHEARSED)
    os.lseek(script, 0, os.SEEK_SET)
    file = python_api.fdopen(script, b"rb")
    for refresh in prepared.refresh:
        refresh()
    error = _run_file(prepared, file, b"/sandbox/main.py", _enter_main(prepared, "/sandbox/main.py"))
    if error is not None:
        raise error
    python_errors.report(None, prepared.stack)
    python_exit.rehearse(prepared.stack)
    prepared.stack.resume_tracing()
    prepared.make_main()
    sys.modules["__main__"] = before


def _enter_main(prepared: _Prepared, file_name: str) -> dict[str, object]:
    """Make the program's module the one named `__main__`; return its variables."""
    prepared.loader.path = file_name
    variables = prepared.main.__dict__
    variables["__loader__"] = prepared.loader
    variables["__annotations__"] = {}
    variables["__builtins__"] = sys.modules["builtins"]
    variables["__file__"] = file_name
    variables["__cached__"] = None
    sys.modules["__main__"] = prepared.main
    del prepared.main, prepared.loader
    return variables


def _leave_main() -> None:
    main = _modules.get("__main__")
    if type(main) is ModuleType:
        variables = main.__dict__
        variables.pop("__file__", None)
        variables.pop("__cached__", None)


def _run_file(prepared: _Prepared, file: int, name: bytes, variables: dict[str, object]) -> BaseException | None:
    """Run the open C file, and close it; return the exception of the program."""
    arguments = (file, name, _FILE_INPUT, variables, variables, 1, None)
    return prepared.stack.run(prepared.run_file, *arguments, forget_depth=True).error
