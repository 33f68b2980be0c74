"""The growing record of one episode: its tokens and its times. The only place that writes `response_mask`."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from agentrl import clock
from agentrl.errors import EngineError
from agentrl.timing import Span, TimeSplit
from agentrl.types import Completion, Prompt, Termination, Trajectory, Turn


@dataclass(slots=True)
class TrajectoryBuilder:
    """Ids, mask and log-probabilities of an episode so far, kept at one length.

    Example: a prompt of 2 ids, a completion of 3 and an observation of 1 give the mask `[0, 0, 1, 1, 1, 0]`.
    """

    prompt_ids: list[int]
    max_response_tokens: int
    token_ids: list[int] = field(init=False)
    response_mask: list[int] = field(init=False)
    rollout_logprobs: list[float] = field(init=False)
    version_spans: list[tuple[int, int]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    experts: bytearray = field(default_factory=bytearray)
    _row_bytes: int = field(init=False, default=0)
    """Bytes of one token's experts."""

    def __post_init__(self) -> None:
        self.token_ids = list(self.prompt_ids)
        self.response_mask = [0] * len(self.token_ids)
        self.rollout_logprobs = [math.nan] * len(self.token_ids)

    @property
    def remaining_tokens(self) -> int:
        """Tokens, sampled or observed, that still fit `max_response_tokens`."""
        return self.max_response_tokens - (len(self.token_ids) - len(self.prompt_ids))

    def add_completion(self, completion: Completion) -> None:
        """Append sampled tokens.

        Raises:
            EngineError: log-probabilities are missing or not finite; the reply is not trained on.
        """
        num_tokens, num_logprobs = len(completion.token_ids), len(completion.logprobs)
        if num_tokens != num_logprobs or not math.isfinite(sum(completion.logprobs)):
            raise EngineError(
                f"engine reply of {num_tokens} tokens: {num_logprobs} log-probabilities. Each token must have a finite one"
            )
        if num_tokens and (not completion.version_spans or completion.version_spans[0][0] != 0):
            raise EngineError(f"engine reply: version spans {completion.version_spans} do not start at the first token")
        if completion.experts:
            self._add_experts(completion)
        start = len(self.token_ids)
        self.version_spans += [(start + offset, version) for offset, version in completion.version_spans]
        self._append(completion.token_ids, mask=1, logprobs=completion.logprobs)

    def add_observation(self, token_ids: list[int]) -> None:
        """Append the tokens of tool results; they are never trained on."""
        self._append(token_ids, mask=0, logprobs=[math.nan] * len(token_ids))

    def build(
        self, *, trajectory_id: str, prompt: Prompt, sample_index: int, termination: Termination, times: TimeSplit
    ) -> Trajectory:
        """Return the finished record, not yet scored."""
        return Trajectory(
            trajectory_id=trajectory_id,
            prompt_id=prompt.prompt_id,
            sample_index=sample_index,
            token_ids=self.token_ids,
            num_prompt_tokens=len(self.prompt_ids),
            response_mask=self.response_mask,
            rollout_logprobs=self.rollout_logprobs,
            version_spans=tuple(self.version_spans),
            turns=tuple(self.turns),
            experts=self._experts_of_all(),
            termination=termination,
            wall_time_s=times.held_s,
            times=times,
        )

    def _add_experts(self, completion: Completion) -> None:
        """Append the experts of new tokens; earlier tokens keep the experts they were sampled with."""
        num_rows = len(self.token_ids) + len(completion.token_ids) - 1
        row_bytes, rest = divmod(len(completion.experts), num_rows)
        if rest or (self.experts and row_bytes != self._row_bytes):
            raise EngineError(
                f"engine reply: {len(completion.experts)} bytes of experts for {num_rows} tokens. Each token needs as many as "
                "the others"
            )
        self._row_bytes = row_bytes
        self.experts += completion.experts[len(self.experts) :]

    def _experts_of_all(self) -> bytes:
        """Return the experts of all tokens but the last; a final observation gets expert 0, since it is not trained on."""
        missing = (len(self.token_ids) - 1) * self._row_bytes - len(self.experts)
        return bytes(self.experts) + bytes(missing)

    def _append(self, token_ids: list[int], *, mask: int, logprobs: list[float]) -> None:
        self.token_ids += token_ids
        self.response_mask += [mask] * len(token_ids)
        self.rollout_logprobs += logprobs
        assert len(self.token_ids) == len(self.response_mask) == len(self.rollout_logprobs)


class TimeLaps:
    """Parts of the wall time of an episode.

    Each lap begins where the last one ended, so that the parts add up to all the time since the start.
    """

    def __init__(self) -> None:
        self._began_at = clock.now()
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    @property
    def split(self) -> TimeSplit:
        """The laps that have ended."""
        return TimeSplit(**self._spent_s)

    def end(self, part: str, *, queue_s: float = 0.0, queue: str = "") -> Span:
        """End a lap, which goes to the field `part` of `TimeSplit`, and return its interval.

        `queue_s` of it, as reported by the service that answered, goes to the field `queue` instead.
        """
        began_at, now = self._began_at, clock.now()
        lap_s, self._began_at = now - began_at, now
        waited_s = min(max(0.0, queue_s), lap_s)
        self._spent_s[part] += lap_s - waited_s
        if waited_s:
            self._spent_s[queue] += waited_s
        return Span(started_at=clock.unix(began_at), ended_at=clock.unix(now), queue_s=waited_s)


def span_since(started: float, *, queue_s: float = 0.0) -> Span:
    """Return the interval from `started`, a time of `agentrl.clock`, until now."""
    return Span(started_at=clock.unix(started), ended_at=clock.unix(clock.now()), queue_s=queue_s)
