"""The per-token fields of a trajectory as bytes: ids, mask bits, and the log-probabilities of sampled tokens.

    u32 x N      token ids
    bits         mask, 8 tokens per byte
    f32 x M      log-probabilities of the M tokens whose mask is 1

Numbers are little-endian in byte planes: first the lowest byte of each, at last the highest. So zstd saves a tenth more.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl.types import Trajectory

_ID, _LOGPROB = np.dtype("<u4"), np.dtype("<f4")
_SIZE = 4
"""Bytes of an id, and of a log-probability."""


def pack_tokens(trajectory: Trajectory) -> bytes:
    """Return the per-token fields; log-probabilities are kept as float32, as engines and the update compute them."""
    mask = np.array(trajectory.response_mask, dtype=bool)
    ids = np.array(trajectory.token_ids, dtype=_ID)
    logprobs = np.array(trajectory.rollout_logprobs, dtype=_LOGPROB)[mask]
    return _to_planes(ids) + np.packbits(mask).tobytes() + _to_planes(logprobs)


def unpack_tokens(packed: bytes, num_tokens: int) -> dict[str, list[int] | list[float]]:
    """Return the fields by name; log-probabilities are NaN where the mask is 0."""
    end_of_ids = _SIZE * num_tokens
    end_of_mask = end_of_ids + -(-num_tokens // 8)
    bits = np.frombuffer(packed[end_of_ids:end_of_mask], dtype=np.uint8)
    mask = np.unpackbits(bits, count=num_tokens)
    logprobs = np.full(num_tokens, np.nan, dtype=_LOGPROB)
    logprobs[mask == 1] = _from_planes(packed[end_of_mask:], _LOGPROB)
    return {
        "token_ids": _from_planes(packed[:end_of_ids], _ID).tolist(),
        "response_mask": mask.tolist(),
        "rollout_logprobs": logprobs.tolist(),
    }


def _to_planes(values: NDArray[Any]) -> bytes:
    return values.view(np.uint8).reshape(-1, _SIZE).T.tobytes()


def _from_planes(planes: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.frombuffer(planes, dtype=np.uint8).reshape(_SIZE, -1).T.copy().view(dtype).ravel()
