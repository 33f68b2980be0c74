"""The memory of a verdict, and a verdict without outputs that needs less."""

from code_judge_server.schemas import RunResult, Verdict

_VERDICT_BYTES = 4400
_RESULT_BYTES = 1400
"""Bytes of a verdict, or of one test's result, without outputs: measured with `tracemalloc`."""


def held_bytes(verdict: Verdict) -> int:
    """Return the approximate memory of a verdict in bytes."""
    size = _VERDICT_BYTES + len(verdict.stdout) + len(verdict.stderr)
    for result in verdict.tests:
        size += _RESULT_BYTES + len(result.stdout) + len(result.stderr)
    for content in verdict.files.values():
        size += len(content)
    return size


def without_outputs(verdict: Verdict) -> Verdict:
    """Return the verdict without the outputs and files of its program, flagged as truncated."""
    return verdict.model_copy(
        update=_emptied(verdict)
        | {"files": {}, "files_truncated": verdict.files_truncated or bool(verdict.files)}
        | {"tests": [test.model_copy(update=_emptied(test)) for test in verdict.tests]}
    )


def _emptied(result: RunResult) -> dict[str, object]:
    return {
        "stdout": "",
        "stderr": "",
        "stdout_truncated": result.stdout_truncated or bool(result.stdout),
        "stderr_truncated": result.stderr_truncated or bool(result.stderr),
    }
