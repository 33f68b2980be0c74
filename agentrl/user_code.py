"""Calls into code that users wrote: modules, tools, rewards, roles, functions.

Whatever user code raises leaves this file as an `Exception`, and is described in one line with the place that raised it.
`SystemExit`, `KeyboardInterrupt` and a stray cancellation would otherwise end an event loop, or pass a
caller that catches only `Exception`.

It does NOT stop what ends the process itself (`os._exit`, a crash of native code).
"""

import asyncio
import inspect
import sysconfig
import traceback
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

START_TIMEOUT_S = 600.0
"""Time limit for `start` of one tool or reward, which may load a model."""
_LIBRARIES = (*(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib", "platlib")), "<frozen ")
_AGENTRL = f"{Path(__file__).parent}/"


class NotAnExceptionError(RuntimeError):
    """User code raised what is no `Exception`, or a `StopIteration`, which no future accepts; it is the `__cause__`."""


def contained(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that a user wrote.

    Raises:
        NotAnExceptionError: it raised what is no `Exception`, or a `StopIteration`.
        Exception: any that it raised.
    """
    try:
        return function(*arguments)
    except BaseException as error:
        if isinstance(error, Exception) and not isinstance(error, StopIteration):
            raise
        if type(error).__module__.startswith("agentrl."):  # a signal that ends the command
            raise
        raise _as_exception(error) from error


def require_parameters(function: Callable[..., Any], *positional: str, named: Sequence[str] = ()) -> None:
    """Check that a function that a user wrote can be called with these arguments.

    Raises:
        TypeError: it says what it must take, and what it does not.
    """
    try:
        inspect.signature(function).bind(*positional, **dict.fromkeys(named))
    except TypeError as error:
        wanted = ", ".join([*positional, *(["*", *named] if named else [])])
        raise TypeError(f"`{function.__name__}` must take `({wanted})`: {error}") from error


async def contained_coroutine(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine of a function that a user wrote; a cancellation of this task passes.

    Raises:
        NotAnExceptionError: it raised what is no `Exception`.
        Exception: any that it raised.
    """
    task = asyncio.current_task()
    assert task is not None, "awaited inside a task"
    try:
        return await coroutine
    except BaseException as error:
        is_cancelled = isinstance(error, asyncio.CancelledError) and task.cancelling() > 0
        # Python itself raises `GeneratorExit` in a task that is thrown away.
        if is_cancelled or isinstance(error, Exception | GeneratorExit):
            raise
        raise _as_exception(error) from error


async def gathered(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await coroutines together and return their results in order; the first error cancels the others, and waits for them."""
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cause_of(error: BaseException) -> str:
    """Return the class of an error and the line of the user's code that raised it: `ValueError at my_tools.py:11`."""
    error = raised_by_user(error)
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__} at {Path(error.filename).name}:{error.lineno}"
    return f"{type(error).__name__}{_place(traceback.extract_tb(error.__traceback__))}"


def described(error: BaseException) -> str:
    """Return an error in one line, with file and line: `ValueError at my_tools.py:11: no such word`."""
    words = words_of(raised_by_user(error))
    return f"{cause_of(error)}: {words}" if words else cause_of(error)


def raised_by_user(error: BaseException) -> BaseException:
    """Return the original exception behind a `NotAnExceptionError`; any other error as it is."""
    return error.__cause__ if isinstance(error, NotAnExceptionError) and error.__cause__ is not None else error


def words_of(error: BaseException) -> str:
    """Return the text of an error in one line; see `text_of`."""
    return " ".join(text_of(error).split())


def text_of(error: BaseException) -> str:
    """Return the text of an error as valid UTF-8, even if its `__str__` raises."""
    try:
        text = str(error)
    except BaseException as bug:  # noqa: BLE001 - of that `__str__`
        text = f"its text cannot be shown: {type(bug).__name__}"
    return text.encode("utf-8", "replace").decode()


def _place(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return ` at my_tools.py:11`, the innermost line that is the user's."""
    ours = [frame for frame in frames if not frame.filename.startswith(_LIBRARIES)]
    own = [frame for frame in ours if not frame.filename.startswith(_AGENTRL)] or ours or frames
    return f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""


def _as_exception(error: BaseException) -> NotAnExceptionError:
    return NotAnExceptionError(f"it raised {type(error).__name__}: {words_of(error)}")
