"""Compilation of sources in the jail, behind the cache."""

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from code_judge_server.judging.compile_cache import Compilation, CompileCache
from code_judge_server.judging.precompiled_header import PrecompiledHeader
from code_judge_server.judging.preload_choice import choose_preload, shadows_modules
from code_judge_server.judging.run_results import end_of
from code_judge_server.languages import LanguageRules, PrecompiledHeaderRules, command_for
from code_judge_server.sandbox.executor import Executor, Job, JobLimits, Outcome
from code_judge_server.sandbox.outcome import Ending

_ASLEEP_BELOW_CPU_SHARE = 0.01
"""A compiler ended by the wall clock with less CPU than this share waited because of its source, not because of the machine."""

_SCANNED_BYTES = 16 * 1024
"""Bytes scanned for imports in each of several modules; imports are at the top."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program that runs once per test case."""

    argv: tuple[str, ...]
    files: Mapping[str, bytes]
    preload: str | None = None
    """Warm interpreter to use, as `Job.preload`."""
    compile_time_s: float = 0.0
    """Wall clock of the compiler, for this or an earlier submission."""


class CompileError(Exception):
    """The compiler made no program; `outcome` is its end."""

    def __init__(self, message: str, *, outcome: Outcome) -> None:
        super().__init__(message)
        self.outcome = outcome


class CompilerStarvedError(Exception):
    """The wall clock ended the compiler before its CPU limit did: the machine's fault, not the source's."""


class Compiler:
    """Makes programs of sources; a precompiled header may take `max_header_bytes`, and 0 makes none."""

    def __init__(
        self,
        executor: Executor,
        *,
        limits: JobLimits,
        max_artifact_bytes: int,
        max_header_bytes: int,
        cache: CompileCache,
    ) -> None:
        self._executor = executor
        self._limits = limits
        self._max_artifact_bytes = max_artifact_bytes
        self._max_header_bytes = max_header_bytes
        self._cache = cache
        self._headers: dict[PrecompiledHeaderRules, PrecompiledHeader] = {}

    async def program(
        self,
        rules: LanguageRules,
        code: str,
        files: Mapping[str, bytes],
        *,
        options: Sequence[str] = (),
        time_limit_s: float | None = None,
    ) -> Program:
        """Compile `code`, and return the program; `files` are for compiler and program, `options` for the compiler.

        Raises:
            CompileError: the compiler made no program.
            CompilerStarvedError: the compiler did not get enough CPU time.
            ExecutorError: as `Executor.execute`.
        """
        source = {rules.source: code.encode()}
        if rules.compile is None or rules.artifact is None:
            modules = [code.encode(), *(content for path, content in files.items() if path.endswith(".py"))]
            preload = None
            if rules.preload and not shadows_modules(files):
                preload = choose_preload(_beginnings(modules), self._executor.preloads)
            return Program(argv=rules.run, files={**files, **source}, preload=preload)
        limits = self._limits_within(time_limit_s)
        job = Job(
            argv=command_for(rules.compile, memory_bytes=limits.memory_bytes, options=options),
            limits=limits,
            files={**files, **source},
            collect=(rules.artifact,),
            collect_bytes=self._max_artifact_bytes,
        )
        header = None if options else rules.precompiled_header  # made with the row's own flags
        key = await asyncio.to_thread(_key, job, rules.compiler)  # hashes up to a whole request
        compilation = await self._cache.get(key, lambda: self._compile(job, source[rules.source], header))
        outcome = compilation.outcome
        if not compilation.is_lasting and outcome.ending is Ending.WALL_TIME:
            raise CompilerStarvedError(
                f"compiler: {rules.compiler} had {outcome.cpu_time_s:.2f} s of CPU time in {outcome.wall_time_s:.2f} s"
            )
        if compilation.artifact is None:
            raise CompileError(f"{rules.compiler} made no `{rules.artifact}`: it {end_of(outcome)}", outcome=outcome)
        files = {**files, rules.artifact: compilation.artifact}
        return Program(argv=rules.run, files=files, compile_time_s=outcome.wall_time_s)

    async def _compile(self, job: Job, source: bytes, rules: PrecompiledHeaderRules | None) -> Compilation:
        if rules is not None:
            job = self._header(rules).apply_to(job, source)
        outcome = await self._executor.execute(job)
        succeeded = outcome.ending is Ending.EXITED and outcome.exit_code == 0
        return Compilation(
            outcome=replace(outcome, files={}),
            artifact=outcome.files.get(job.collect[0]) if succeeded else None,
            is_lasting=not _ended_by_chance(outcome, job.limits),
        )

    def _header(self, rules: PrecompiledHeaderRules) -> PrecompiledHeader:
        header = self._headers.get(rules)
        if header is None:
            header = PrecompiledHeader(rules, self._executor, limits=self._limits, max_bytes=self._max_header_bytes)
            self._headers[rules] = header
        return header

    def _limits_within(self, time_limit_s: float | None) -> JobLimits:
        if time_limit_s is None or time_limit_s >= self._limits.cpu_time_s:
            return self._limits
        slack = self._limits.wall_time_s / self._limits.cpu_time_s
        return replace(self._limits, cpu_time_s=time_limit_s, wall_time_s=slack * time_limit_s)


def _ended_by_chance(outcome: Outcome, limits: JobLimits) -> bool:
    """Return whether the compiler's end may differ the next time."""
    if outcome.ending is not Ending.WALL_TIME:
        return outcome.ending is Ending.CANCELLED
    slept = outcome.cpu_time_s < _ASLEEP_BELOW_CPU_SHARE * outcome.wall_time_s
    return not slept and outcome.cpu_time_s < limits.cpu_time_s


def _beginnings(modules: list[bytes]) -> bytes:
    return modules[0] if len(modules) == 1 else b"\n".join(module[:_SCANNED_BYTES] for module in modules)


def _key(job: Job, compiler: str) -> bytes:
    """Return a hash of everything that decides the compiler's result, the compiler's own file included."""
    file = os.stat(compiler)
    parts = [repr((job.argv, job.limits, file.st_ino, file.st_size, file.st_mtime_ns)).encode()]
    for name, content in sorted(job.files.items()):
        parts += [name.encode(), content]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.digest()
