"""Expected run times of programs, learned from past runs."""

from collections import Counter, defaultdict

from code_judge_server.queueing.queued_run import QueuedRun

_FIRST_GUESS_S = 0.02
_SMOOTHING = 0.05
"""Weight of the newest program in the mean of its kind."""


class RunTimes:
    """A running mean of the slot time of one run of a program, for each kind of program."""

    def __init__(self) -> None:
        self._mean_s: defaultdict[str, float] = defaultdict(lambda: _FIRST_GUESS_S)

    def learn(self, run: QueuedRun, run_time_s: float) -> None:
        """Learn the slot time of a run with a verdict."""
        mean_s = self._mean_s[run.kind]
        self._mean_s[run.kind] = mean_s + _SMOOTHING * (run_time_s / run.num_units - mean_s)

    def expected_s(self, run: QueuedRun) -> float:
        """Return the expected slot time of a run."""
        return self._mean_s[run.kind] * run.num_units

    def backlog_s(self, num_units: Counter[str]) -> float:
        """Return the expected slot time of so many runs of each kind together."""
        return sum(self._mean_s[kind] * number for kind, number in num_units.items())
