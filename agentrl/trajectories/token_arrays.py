"""The per-token fields of a trajectory as bytes: ids, mask bits, and the log-probabilities of sampled tokens.

u32 x N      token ids
bits         mask, 8 tokens per byte
f32 x M      log-probabilities of the M tokens whose mask is 1
"""

import numpy as np

from agentrl.types import Trajectory

_ID, _LOGPROB = np.dtype("<u4"), np.dtype("<f4")


def pack_tokens(trajectory: Trajectory) -> bytes:
    """Return the per-token fields; log-probabilities are kept as float32, as engines and the update compute them."""
    mask = np.array(trajectory.response_mask, dtype=bool)
    logprobs = np.array(trajectory.rollout_logprobs, dtype=_LOGPROB)[mask]
    return np.array(trajectory.token_ids, dtype=_ID).tobytes() + np.packbits(mask).tobytes() + logprobs.tobytes()


def unpack_tokens(packed: bytes, num_tokens: int) -> dict[str, list[int] | list[float]]:
    """Return the fields by name; log-probabilities are NaN where the mask is 0."""
    ids = np.frombuffer(packed, dtype=_ID, count=num_tokens)
    num_mask_bytes = -(-num_tokens // 8)
    bits = np.frombuffer(packed, dtype=np.uint8, count=num_mask_bytes, offset=ids.nbytes)
    mask = np.unpackbits(bits, count=num_tokens)
    logprobs = np.full(num_tokens, np.nan, dtype=_LOGPROB)
    logprobs[mask == 1] = np.frombuffer(packed, dtype=_LOGPROB, offset=ids.nbytes + num_mask_bytes)
    return {"token_ids": ids.tolist(), "response_mask": mask.tolist(), "rollout_logprobs": logprobs.tolist()}
