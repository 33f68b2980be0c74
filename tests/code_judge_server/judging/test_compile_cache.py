"""The compile cache keeps artifacts within its bound, and never compiles one source twice at the same time."""

import asyncio

import pytest

from code_judge_server.judging.compile_cache import Compilation, CompileCache
from code_judge_server.sandbox.executor import ExecutorError, Outcome
from code_judge_server.sandbox.outcome import Ending


def compilation(artifact: bytes | None = b"x", *, is_lasting: bool = True, stderr: bytes = b"") -> Compilation:
    outcome = Outcome(
        ending=Ending.EXITED, exit_code=0 if artifact else 1, signal=None, stdout=b"", stderr=stderr, stdout_cut=False,
        stderr_cut=False, cpu_time_s=0.1, wall_time_s=0.1, peak_memory_bytes=1,
    )  # fmt: skip
    return Compilation(outcome=outcome, artifact=artifact, is_lasting=is_lasting)


class FakeCompiler:
    """Counts its calls; each takes until `finish`."""

    def __init__(self, outcome: Compilation | Exception) -> None:
        self.outcome = outcome
        self.num_started = 0
        self.num_cancelled = 0
        self.finish = asyncio.Event()

    async def __call__(self) -> Compilation:
        self.num_started += 1
        try:
            await self.finish.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def quick(outcome: Compilation | Exception) -> FakeCompiler:
    compiler = FakeCompiler(outcome)
    compiler.finish.set()
    return compiler


@pytest.mark.parametrize("artifact", [b"x", None], ids=["success", "failure"])
async def test_the_second_of_two_equal_sources_is_not_compiled(artifact: bytes | None) -> None:
    cache, compiler = CompileCache(1 << 20), quick(compilation(artifact))
    first, second = await cache.get(b"k", compiler), await cache.get(b"k", compiler)
    assert (compiler.num_started, first is second) == (1, True)


async def test_results_that_may_change_are_not_cached() -> None:
    cache, compiler = CompileCache(1 << 20), quick(compilation(None, is_lasting=False))
    await cache.get(b"k", compiler)
    await cache.get(b"k", compiler)
    assert compiler.num_started == 2


async def test_the_least_recently_used_goes_first_and_the_bytes_are_bounded() -> None:
    cache = CompileCache(35_000)
    compilers = {name: quick(compilation(b"x" * 10_000)) for name in (b"a", b"b", b"c", b"d")}
    for name in (b"a", b"b", b"c", b"a", b"d"):
        await cache.get(name, compilers[name])
        assert cache.size_bytes <= 35_000
    for name in (b"a", b"c", b"d"):
        await cache.get(name, compilers[name])
    assert {name: compiler.num_started for name, compiler in compilers.items()} == {b"a": 1, b"b": 1, b"c": 1, b"d": 1}
    await cache.get(b"b", compilers[b"b"])
    assert compilers[b"b"].num_started == 2


async def test_compiler_output_counts_in_the_size() -> None:
    cache, compiler = CompileCache(10_000), quick(compilation(None, stderr=b"x" * 20_000))
    await cache.get(b"k", compiler)
    assert cache.size_bytes == 0


async def test_an_empty_cache_keeps_nothing() -> None:
    cache, compiler = CompileCache(0), quick(compilation())
    await cache.get(b"k", compiler)
    await cache.get(b"k", compiler)
    assert compiler.num_started == 2


async def test_equal_sources_at_the_same_time_share_one_compilation() -> None:
    cache, compiler = CompileCache(1 << 20), FakeCompiler(compilation(is_lasting=False))
    waiting = [asyncio.create_task(cache.get(b"k", compiler)) for _ in range(5)]
    await asyncio.sleep(0)
    compiler.finish.set()
    assert {id(outcome) for outcome in await asyncio.gather(*waiting)} == {id(compiler.outcome)}
    assert compiler.num_started == 1


async def test_cancelling_one_of_two_callers_does_not_affect_the_other() -> None:
    cache, compiler = CompileCache(1 << 20), FakeCompiler(compilation())
    first, second = (asyncio.create_task(cache.get(b"k", compiler)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    await asyncio.sleep(0.01)
    compiler.finish.set()
    assert await second is compiler.outcome
    assert (compiler.num_started, compiler.num_cancelled) == (1, 0)


async def test_an_abandoned_compilation_is_cancelled_and_does_not_affect_the_next() -> None:
    cache, compiler = CompileCache(1 << 20), FakeCompiler(compilation())
    waiting = [asyncio.create_task(cache.get(b"k", compiler)) for _ in range(2)]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    next_one = asyncio.create_task(cache.get(b"k", compiler))
    await asyncio.sleep(0.01)
    compiler.finish.set()
    assert await next_one is compiler.outcome
    assert (compiler.num_started, compiler.num_cancelled) == (2, 1)


async def test_a_failed_executor_fails_all_callers_and_is_retried() -> None:
    cache, compiler = CompileCache(1 << 20), FakeCompiler(ExecutorError("no slot"))
    waiting = [asyncio.create_task(cache.get(b"k", compiler)) for _ in range(2)]
    await asyncio.sleep(0)
    compiler.finish.set()
    assert all(isinstance(error, ExecutorError) for error in await asyncio.gather(*waiting, return_exceptions=True))
    with pytest.raises(ExecutorError):
        await cache.get(b"k", compiler)
    assert compiler.num_started == 2
