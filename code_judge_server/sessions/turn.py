"""One cell's turn in the queue; its end is named like that of a program."""

from code_judge_server.judging.run_results import run_result, status_of
from code_judge_server.limits import as_limits
from code_judge_server.sandbox.executor import Executor, JobLimits, Outcome, Spent
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import RunResult, Verdict, VerdictStatus
from code_judge_server.sessions.cell_report import CellReport
from code_judge_server.sessions.schemas import CellRequest, CellResult
from code_judge_server.sessions.session import CellRefusedError, NoSnapshotError, Session, SessionDiedError


class Turn:
    """A cell that waits for its turn; `take` is the work for the queue. The session's own `turn` is held."""

    def __init__(
        self,
        session: Session,
        cell: CellRequest,
        *,
        limits: JobLimits,
        executor: Executor,
        max_chars: int,
    ) -> None:
        self._session = session
        self._cell = cell
        self._limits = limits
        self._executor = executor
        self._max_chars = max_chars
        self._report = CellReport()
        self._refusal: NoSnapshotError | None = None

    async def take(self, queue_time_s: float, spent: Spent) -> Verdict:
        """Run the cell, with its CPU time in `spent` meanwhile, and return its verdict."""
        status: VerdictStatus | None = None
        start = self._session.current if self._cell.from_snapshot is None else self._cell.from_snapshot
        try:
            end = await self._session.run(self._cell, start=start, limits=self._limits, spent=spent)
            outcome, self._report = end.outcome, end.report
        except SessionDiedError as error:
            outcome = _end_of_a_session(error)
        except NoSnapshotError as error:
            self._refusal = error
            outcome = _end_of_a_session(error)
        except CellRefusedError as error:
            outcome, status = _end_of_a_session(error), VerdictStatus.INTERNAL_ERROR
        result = run_result(outcome, status or status_of(outcome), max_chars=self._max_chars)
        return Verdict(
            **dict(result),
            id=self._session.id,
            files=dict(outcome.files),
            files_truncated=outcome.files_cut,
            queue_time_s=queue_time_s,
            limits=as_limits(self._limits),
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )

    def result(self, verdict: Verdict) -> CellResult:
        """Return the result of the cell, given the verdict that the queue returned.

        Raises:
            NoSnapshotError: the snapshot to start from does not exist.
        """
        if self._refusal is not None:
            raise self._refusal
        return CellResult(
            **{name: getattr(verdict, name) for name in RunResult.model_fields},
            session_id=self._session.id,
            snapshot=self._session.current,
            display=self._report.display,
            error=self._report.error,
            files=verdict.files,
            files_truncated=verdict.files_truncated,
            session_closed=not self._session.alive,
            queue_time_s=verdict.queue_time_s,
            isolation=verdict.isolation,
            memory_enforcement=verdict.memory_enforcement,
        )


def _end_of_a_session(error: CellRefusedError | NoSnapshotError | SessionDiedError) -> Outcome:
    ending = error.ending if isinstance(error, SessionDiedError) else Ending.EXITED
    return Outcome(ending=ending, stderr=str(error).encode())
