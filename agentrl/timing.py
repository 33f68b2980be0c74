"""Times of a trajectory: intervals on the clock, and wall time by what it was spent on."""

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Interval in Unix seconds, by the clock of the process that measured it (`agentrl.clock.unix`).

    Example: a call that waited 0.5 s in a queue and then ran 2 s: `Span(started_at=100.0, ended_at=102.5, queue_s=0.5)`.
    """

    started_at: float
    ended_at: float
    queue_s: float = 0.0
    """Time at its beginning that was spent in a queue."""

    @property
    def duration_s(self) -> float:
        """Length of the interval."""
        return self.ended_at - self.started_at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Wall time of a trajectory by what it was spent on, from its request to the end of its batch, in seconds.

    The parts add up to the whole. Example: admitted at once, 3 s of sampling, a program that waited 2 s for a judge's slot and
    ran 1 s, 4 s of waiting for other trajectories: `TimeSplit(generate_s=3, judge_queue_s=2, tool_s=1, tail_wait_s=4)`.
    """

    admission_wait_s: float = 0.0
    """Time until an engine had room."""
    dispatch_s: float = 0.0
    """Transfer between driver and worker, workers that died included."""
    retry_s: float = 0.0
    """Failed episodes and the pauses after them."""
    tokenise_s: float = 0.0
    """Tokenising, parsing and building the record."""
    engine_queue_s: float = 0.0
    generate_s: float = 0.0
    """Sampling, the round trip to the engine included."""
    judge_queue_s: float = 0.0
    """Judge queue of each turn's longest-waiting call."""
    tool_s: float = 0.0
    """Everything else until the last call of a turn, or the environment, is answered."""
    reward_queue_s: float = 0.0
    """Judge queue of the reward's longest-waiting call."""
    reward_s: float = 0.0
    """Rest of scoring, and the tools' `end_episode`."""
    tail_wait_s: float = 0.0
    """Time from its own end to the end of its batch."""

    @property
    def held_s(self) -> float:
        """The time for which it held a place on an engine."""
        return sum(getattr(self, name) for name in TIME_PARTS) - self.admission_wait_s - self.tail_wait_s


TIME_PARTS = tuple(part.name for part in fields(TimeSplit))
