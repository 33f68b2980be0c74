"""Recorded trajectories as plain data for pages: conversations, tokens, and the members of a group side by side."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentrl.errors import AgentRLError
from agentrl.models.tokenizer import light_text_decoder
from agentrl.trajectories.codec import encode_prompt, encode_without_tokens
from agentrl.trajectories.store import TrajectoryStore, read_prompt, read_trajectory
from agentrl.types import Trajectory

_ANCHOR = "a"
"""Text before a token while it is decoded, since some tokenizers drop a space at the beginning of a text."""
_BROKEN = "\ufffd"
"""Sign for bytes that are no character by themselves."""
MAX_GROUP_TOKENS = 6000
"""Sampled and observed tokens of each member that the side-by-side view shows."""


@dataclass(slots=True)
class TokenTexts:
    """Texts of tokens, each decoded once."""

    decode: Callable[[Sequence[int]], str]
    anchor: Sequence[int]
    _texts: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of_run(cls, run_dir: Path, model_path: str) -> "TokenTexts | None":
        """Return those of a run's model, else of the policy that it left; None if neither has a tokenizer here."""
        for path in (model_path, str(run_dir / "policy")):
            try:
                encode, decode = light_text_decoder(path)
            except AgentRLError:
                continue
            return cls(decode, encode(_ANCHOR))
        return None

    def of(self, token_ids: Sequence[int]) -> list[str]:
        """Return the text of each token; a character of several tokens belongs to the first, and the others are empty."""
        distinct = set(token_ids)
        for token_id in distinct - self._texts.keys():
            self._texts[token_id] = self._text_of([token_id]) or f"\u27e8{token_id}\u27e9"
        texts = [self._texts[token_id] for token_id in token_ids]
        if not any(_BROKEN in self._texts[token_id] for token_id in distinct):
            return texts
        start = 0
        while start < len(texts):
            end = start
            while end < len(texts) and _BROKEN in texts[end]:
                end += 1
            if end - start > 1:
                texts[start:end] = [self._text_of(token_ids[start:end])] + [""] * (end - start - 1)
            start = max(end, start + 1)
        return texts

    def _text_of(self, token_ids: Sequence[int]) -> str:
        text = self.decode([*self.anchor, *token_ids])
        return text[len(_ANCHOR) :] if text.startswith(_ANCHOR) else self.decode(token_ids)


def conversation(run_dir: Path, place: dict[str, Any]) -> dict[str, Any]:
    """Return the record at a row of the index, with its prompt, without its tokens."""
    path, trajectory = _trajectory_at(run_dir, place)
    prompt = read_prompt(path, place["prompt_offset"]) if place["prompt_offset"] is not None else None
    return {
        "place": place,
        "record": encode_without_tokens(trajectory),
        "prompt": encode_prompt(prompt) if prompt else None,
    }


def tokens(run_dir: Path, place: dict[str, Any], texts: TokenTexts | None) -> dict[str, Any]:
    """Return the tokens of a trajectory as columns: `text[index_of_text[i]]` is the text of token `i`."""
    _, trajectory = _trajectory_at(run_dir, place)
    distinct: dict[str, int] = {}
    index_of_text = [distinct.setdefault(text, len(distinct)) for text in _texts(trajectory.token_ids, texts)]
    return {
        "has_text": texts is not None,
        "num_prompt_tokens": trajectory.num_prompt_tokens,
        "token_ids": trajectory.token_ids,
        "texts": list(distinct),
        "index_of_text": index_of_text,
        "mask": trajectory.response_mask,
        "logprobs": np.round(trajectory.rollout_logprobs, 4).tolist(),  # NaN becomes null
        "version_spans": trajectory.version_spans,
    }


def group(run_dir: Path, places: list[dict[str, Any]], texts: TokenTexts | None) -> dict[str, Any]:
    """Return the members of a group with the tokens after their prompt."""
    members = []
    for place in places:
        _, trajectory = _trajectory_at(run_dir, place)
        start = trajectory.num_prompt_tokens
        end = start + MAX_GROUP_TOKENS
        members.append(
            {
                "place": place,
                "token_ids": trajectory.token_ids[start:end],
                "texts": _texts(trajectory.token_ids[start:end], texts),
                "mask": trajectory.response_mask[start:end],
                "num_left_out": max(0, len(trajectory.token_ids) - end),
            }
        )
    return {"members": members, "has_text": texts is not None}


def _texts(token_ids: Sequence[int], texts: TokenTexts | None) -> list[str]:
    return texts.of(token_ids) if texts else [f"{token_id} " for token_id in token_ids]


def _trajectory_at(run_dir: Path, place: dict[str, Any]) -> tuple[Path, Trajectory]:
    path = TrajectoryStore(run_dir).file(place["step"], validation=bool(place["is_validation"]))
    return path, read_trajectory(path, place["offset"])
