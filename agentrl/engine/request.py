"""One request inside the embedded engine, from its arrival to its completion."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from agentrl.types import Completion, FinishReason, SamplingParams


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """What the engine knows about a request. Only the compute thread touches it."""

    request_id: str
    prompt_ids: np.ndarray
    """[num prompt tokens], int32."""
    params: SamplingParams
    max_tokens: int
    """`params.max_tokens`, or what the context leaves if that is less."""
    stop_token_ids: frozenset[int]
    expires_at: float
    """On this process's monotonic clock."""
    uniforms: list[float]
    """One draw from [0, 1) per token to sample, fixed by the seed alone; empty for a greedy request."""
    future: Future[Completion]
    row: int = -1
    """Its row of the KV cache; -1 while it waits for one."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version_spans: list[tuple[int, int]] = field(default_factory=list)

    def append(self, token_id: int, logprob: float, policy_version: int) -> None:
        """Take one sampled token."""
        if not self.version_spans or self.version_spans[-1][1] != policy_version:
            self.version_spans.append((len(self.token_ids), policy_version))
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the last token was the last one, or None to go on."""
        if self.token_ids and self.token_ids[-1] in self.stop_token_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.max_tokens else None

    def is_abandoned(self, now: float) -> bool:
        """Whether nobody waits for it any more: its deadline passed, or the awaiting task was cancelled."""
        return now >= self.expires_at or self.future.cancelled()

    def complete(self, reason: FinishReason, policy_version: int) -> None:
        """Hand over what was sampled; `policy_version` stamps a completion without tokens."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(
                Completion(
                    token_ids=self.token_ids,
                    logprobs=self.logprobs,
                    finish_reason=reason,
                    version_spans=tuple(self.version_spans) or ((0, policy_version),),
                )
            )

    def fail(self, error: Exception) -> None:
        """Give the awaiting task an error instead of a completion."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)
