"""The records that flow between the stages: prompt, completion, tool result, trajectory.

All are plain data, since they cross processes and are written to disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentrl import clock
from agentrl.timing import Span, TimeSplit

Message = dict[str, Any]
"""One chat message as chat templates expect it: `role`, `content`, and for tools `tool_calls` or `name`."""

Answer = str | int | float | bool | list[Any] | dict[str, Any] | None
"""A reference answer as the data set has it: plain data."""

TOOL_REWARD_METRIC, ENVIRONMENT_REWARD_METRIC = "tool_reward", "environment_reward"
"""Entries of `reward_metrics`: the sum of the tools' rewards, and of the environment's; absent where none was given."""


class Deadline:
    """A point in time by which an answer is due.

    It is pickled as the remaining seconds, because the clocks of two machines differ.

    >>> Deadline.after(2.0).remaining_s() <= 2.0
    True
    """

    __slots__ = ("_expires_at",)

    def __init__(self, expires_at: float) -> None:
        """Take `expires_at` on the clock of this process (`agentrl.clock`); most callers want `Deadline.after`."""
        self._expires_at = expires_at

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """Return the deadline `seconds` from now."""
        return cls(clock.now() + seconds)

    def remaining_s(self) -> float:
        """Return the seconds left, never below zero."""
        return max(0.0, self._expires_at - clock.now())

    def capped(self, seconds: float) -> "Deadline":
        """Return the earlier of this deadline and `seconds` from now."""
        return Deadline(min(self._expires_at, clock.now() + seconds))

    @property
    def expired(self) -> bool:
        """True once no time remains."""
        return self.remaining_s() == 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        return (_deadline_after, (self.remaining_s(),))


def _deadline_after(seconds: float) -> Deadline:
    # Ray sends a bound method such as `Deadline.after` as code, and walks all modules for it: 2 ms a call.
    return Deadline.after(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One problem of the data set.

    Example: `Prompt(prompt_id="train-17", messages=[{"role": "user", "content": "Compute 2 + 3."}], answer="5")`.
    """

    prompt_id: str
    messages: list[Message]
    answer: Answer = None
    """The reference answer as the row has it, None where it has none; the policy never sees it."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further columns of the data set, for rewards and tools."""
    is_text: bool = False
    """True where the row's prompt is plain text, not a list of messages."""
    answer_column: str = ""
    """Column of the answer, dots enter structs; empty where the prompt comes from no row."""
    data_set: str = field(default="", compare=False)
    """Name of its data set: the column `data_source`, else that of its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling parameters of one completion."""

    max_tokens: int
    stop: tuple[str, ...] = ()
    """Texts that end the completion; the token that completes such a text is the last."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    """All tokens that end a completion; the stop token is kept. Engines add none of their own."""


class FinishReason(StrEnum):
    """Reason why an engine stopped sampling."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One engine reply: the sampled ids, a sampled stop token included, and their log-probabilities.

    Example: three tokens, the last two sampled after a weight update:
    `Completion(token_ids=[11, 12, 2], logprobs=[-0.1, -0.7, 0.0], finish_reason="stop", version_spans=((0, 4), (1, 5)))`.
    """

    token_ids: list[int]
    logprobs: list[float]
    """Log-probability of each sampled id under the distribution it was drawn from (temperature and truncation applied)."""
    finish_reason: FinishReason
    version_spans: tuple[tuple[int, int], ...]
    """`(start index, policy_version)` pairs, ascending; the first starts at 0."""
    queue_s: float = 0.0
    """Time until the engine began the request; 0 if the engine does not report it."""
    experts: bytes = b""
    """Experts of the tokens of prompt and completion, laid out as `Trajectory.experts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call that the policy wrote. `parse_error` is the reason when it could not be read, and then `name` may be empty."""

    call_id: str
    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    parse_error: str = ""


class ToolStatus(StrEnum):
    """Outcome of a tool call; everything but OK is a failed call."""

    OK = "ok"
    ERROR = "error"
    """The tool ran and reports a failure, such as a program that exits with an error."""
    NO_RESULT = "no_result"
    """The tool's code returned None or an object without text, as after a forgotten `return`."""
    TIMEOUT = "timeout"
    UNPARSABLE = "unparsable"
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"
    TOO_MANY_CALLS = "too_many_calls"
    """The turn had more calls than are answered; this one was not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """Answer of a tool, as the policy reads it."""

    status: ToolStatus
    text: str
    truncated: bool = False
    wall_time_s: float = 0.0
    queue_s: float = 0.0
    """Part of `wall_time_s` spent in the queues of judge and judge client."""
    cause: str = ""
    """Exception of the tool's code with file and line (`ValueError at my_tools.py:11`); not shown to the policy."""
    reward: float | None = None
    """Reward of the tool for this step; rewards read it by `agentrl.rewards.tool_rewards.tool_reward`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One assistant turn: its text and the calls in it with their results, in the order of the calls."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    final_tool_reward: float | None = None
    """Sum of the episode rewards of tools that have no result in this, the last turn."""
    observation: str | None = None
    environment_reward: float | None = None
    """Answer of the environment to a turn without calls, and its reward for that turn."""
    sampled: Span | None = None
    """Interval from the request to the engine until its reply; None in turns that no loop of agentrl played."""
    answered: Span | None = None
    """Interval in which tools or the environment answered; all calls of a turn start together."""


class Termination(StrEnum):
    """Reason why a trajectory ended."""

    ANSWERED = "answered"
    """The policy ended a turn without a tool call; with an environment: that said that the episode is over."""
    MAX_TURNS = "max_turns"
    MAX_RESPONSE_TOKENS = "max_response_tokens"
    TIMEOUT = "timeout"
    """The deadline of the trajectory, or of a turn, passed after the policy had begun to write."""
    INFRA_ERROR = "infra_error"
    """The infrastructure failed: no reward, never trained on."""
    DATA_ERROR = "data_error"
    """The prompt's data, or the code that reads it, failed: no reward, never trained on."""


class FailureClass(StrEnum):
    """Cause of a failed trajectory; `*_DATA` blames the data, every other class the infrastructure."""

    ENGINE = "engine"
    """An engine died, did not answer in time, or gave a reply that cannot be trained on."""
    JUDGE = "judge"
    """A tool or the reward got no verdict from the code judge."""
    TOOL = "tool"
    """A service that another tool needs is unavailable."""
    ENVIRONMENT = "environment"
    REWARD = "reward"
    """The reward, or the environment, did not answer in time, or a service that it needs is unavailable."""
    WORKER = "worker"
    """An agent-loop process died, did not answer, or could not build its tools."""
    HANG = "hang"
    """The episode exceeded its time for none of the reasons above, such as a tokenizer that hangs."""
    TOOL_DATA = "tool_data"
    ENVIRONMENT_DATA = "environment_data"
    REWARD_DATA = "reward_data"
    """Tool, environment or reward cannot use the prompt's data, or raised an unexpected exception."""

    @property
    def is_data(self) -> bool:
        """True if the data, or the code that reads it, is at fault."""
        return self.endswith("_data")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt at a trajectory.

    Example: `Failure(failure_class=FailureClass.REWARD_DATA, cause="ValueError at my_rewards.py:17", message="reward of
    prompt `p3` raised ValueError at my_rewards.py:17: invalid literal")`.
    """

    failure_class: FailureClass
    message: str
    cause: str = ""
    """Class and place of an unexpected exception; equal causes are the same failure."""
    attempt: Span | None = field(default=None, compare=False)
    """The failed attempt; None if the driver only knows that it is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one episode, in tokens.

    `token_ids[:num_prompt_tokens]` is the prompt. `response_mask`, `rollout_logprobs` have one entry per id. Example, with a
    prompt of two tokens, and an observation between two sampled ones: `token_ids=[5, 6, 7, 8, 9]`, `num_prompt_tokens=2`,
    `response_mask=[0, 0, 1, 0, 1]`, `rollout_logprobs=[nan, nan, -0.3, nan, -0.1]`.
    """

    trajectory_id: str
    prompt_id: str
    sample_index: int
    token_ids: list[int]
    num_prompt_tokens: int
    response_mask: list[int]
    """1 = sampled by the policy and trained on; 0 = prompt or observation."""
    rollout_logprobs: list[float]
    """Log-probabilities from the engine where the mask is 1, NaN elsewhere."""
    version_spans: tuple[tuple[int, int], ...]
    """`(start index into token_ids, policy_version)` of every sampled span."""
    turns: tuple[Turn, ...]
    termination: Termination
    row_starts: tuple[int, ...] = ()
    """Indices into `token_ids` of the first tokens of further rows, which are dialogues with positions of their own."""
    reward: float | None = None
    """None exactly when `termination` is `infra_error` or `data_error`."""
    reward_metrics: Mapping[str, float] = field(default_factory=dict)
    """Breakdown of the reward: its further metrics, and the scores of its parts."""
    is_masked: bool = False
    """Left out of every update: it was cut short, and `reward.score_unfinished` is `mask`."""
    experts: bytes = b""
    """Experts of each token but the last, layer by layer, in one or two bytes each; empty: unknown. Not in files."""
    failures: tuple[Failure, ...] = ()
    """Every failed attempt; the last one too, if the trajectory is lost."""
    num_retries: int = 0
    """Episodes that failed before this one."""
    wall_time_s: float = 0.0
    times: TimeSplit = field(default_factory=TimeSplit)
    """The worker's parts; the driver adds its own to the summary."""
    span: Span | None = None
    """Interval from the request at the worker to the end, all attempts included."""
    scored: Span | None = None
    """Interval in which the reward was computed."""

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Every tool result of the episode, in order."""
        return tuple(result for turn in self.turns for result in turn.results)

    @property
    def num_response_tokens(self) -> int:
        """Sampled tokens, observations not counted."""
        return sum(self.response_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolTally:
    """Calls of one tool in a trajectory.

    Example: `ToolTally(name="calc", num_calls=3, num_failed=1, cause="`error`, ValueError at my_tools.py:11")`.
    """

    name: str
    """Empty: calls that could not be parsed, or named no tool."""
    num_calls: int
    num_failed: int
    cause: str
    """Status and reason of the most common failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySummary:
    """Facts about a trajectory that the driver needs, without its tokens."""

    trajectory_id: str
    prompt_id: str
    sample_index: int
    reward: float | None
    termination: Termination
    num_tokens: int
    """Prompt, observations and sampled tokens together: the cost of training on it."""
    num_response_tokens: int
    num_turns: int
    num_tool_calls: int
    num_failed_tool_calls: int
    num_answer_tags: int
    num_retries: int
    wall_time_s: float
    policy_version: int
    """Oldest version that sampled any of its tokens."""
    tool_time_s: float = 0.0
    num_cut_tool_results: int = 0
    tools: tuple[ToolTally, ...] = ()
    failures: tuple[Failure, ...] = ()
    times: TimeSplit = field(default_factory=TimeSplit)
    finished_at: float = 0.0
    """Arrival at the driver, on the driver's clock."""
    reward_metrics: Mapping[str, float] = field(default_factory=dict)
    is_masked: bool = False
    num_prompt_tokens: int = 0
    """Part of `num_tokens` that all trajectories of the prompt share; those of several rows share nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRef:
    """A finished trajectory as the driver holds it: its summary, and a reference to the tokens."""

    summary: TrajectorySummary
    ref: Any
    """Ray ObjectRef of the `Trajectory`; the `Trajectory` itself if it was not built by a worker, or without Ray."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The trajectories of one prompt."""

    prompt_id: str
    trajectories: Sequence[TrajectoryRef]

    @property
    def rewards(self) -> list[float]:
        """Rewards of the trajectories, in their order; every trajectory that is trained on has one."""
        return [float(t.summary.reward) for t in self.trajectories if t.summary.reward is not None]
