"""A large C++ header compiled once for all sources that include it: `g++ -O2` then takes less than half the time.

It is made in the jail like other artifacts and kept in the server's memory. Each compilation gets its own copy, so no source
can spoil it for another.
"""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import replace

from code_judge_server.judging.run_results import end_of
from code_judge_server.languages import PrecompiledHeaderRules
from code_judge_server.sandbox.executor import Executor, ExecutorError, Job, JobLimits
from code_judge_server.sandbox.outcome import Ending

logger = logging.getLogger(__name__)

_FOLDER = ".precompiled"
_BEFORE_FIRST_DIRECTIVE = rb"(?:\s++|//[^\n]*+\n|/\*(?:[^*]++|\*(?!/))*+\*/)*+"


class PrecompiledHeader:
    """One header, compiled in the background when the first source includes it; not used if larger than `max_bytes`."""

    def __init__(self, rules: PrecompiledHeaderRules, executor: Executor, *, limits: JobLimits, max_bytes: int) -> None:
        self._rules = rules
        self._executor = executor
        self._limits = limits
        self._max_bytes = max_bytes
        # The compiler uses it only at the start of a source, as an earlier macro might change the header's meaning.
        include = rb"#[ \t]*+include[ \t]*+<" + re.escape(rules.header.encode()) + rb">"
        self._first_include = re.compile(_BEFORE_FIRST_DIRECTIVE + include)
        self._making: asyncio.Task[None] | None = None
        self._files: Mapping[str, bytes] = {}

    def apply_to(self, job: Job, source: bytes) -> Job:
        """Return the compilation `job` with the precompiled header, if it is ready and `source` begins with it."""
        is_in_the_way = any(path.split("/")[0] == _FOLDER for path in job.files)
        if self._max_bytes == 0 or is_in_the_way or self._first_include.match(source) is None:
            return job
        if self._making is None:
            self._making = asyncio.create_task(self._make())
        if not self._files:
            return job
        argv = (job.argv[0], f"-I{_FOLDER}", *job.argv[1:])
        return replace(job, argv=argv, files={**job.files, **self._files})

    async def _make(self) -> None:
        rules = self._rules
        source = f"#include <{rules.header}>\n".encode()
        job = Job(
            argv=rules.compile,
            limits=self._limits,
            files={rules.source: source},
            collect=(rules.artifact,),
            collect_bytes=self._max_bytes,
        )
        try:
            outcome = await self._executor.execute(job)
        except ExecutorError as error:
            logger.warning("precompiled header %s: %s", rules.header, error)
            self._making = None
            return
        content = outcome.files.get(rules.artifact)
        if outcome.ending is not Ending.EXITED or outcome.exit_code != 0 or content is None:
            logger.warning("precompiled header %s: %s %s; not used", rules.header, rules.compile[0], end_of(outcome))
            return
        self._files = {f"{_FOLDER}/{rules.header}.gch": content}
