"""Rates of the card and of single kernels, each by itself: one JSON line for each probe, also where one fails.

python -m benchmarks.gpu.kernels [--tiny]
"""

import argparse
import ctypes
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.cuda import nccl
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn import functional

from agentrl.training.attention.packed import packed_attention
from agentrl.training.packing.row_layout import RowLayout, SharedPrefix, row_layout
from agentrl.training.scoring.chunked_logits import vocabulary_scores
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.transports.broadcast import BroadcastGroup

_QUERY_HEADS, _KEY_HEADS, _HEAD_DIM = 12, 2, 128
_NUM_ROUNDS = 5


class Card:
    """The device under test, and the sizes for it."""

    def __init__(self, *, is_tiny: bool) -> None:
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        self.is_small = is_tiny or not self.on_gpu

    def normal(self, *shape: int) -> Tensor:
        """Return random bfloat16 on the device."""
        return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

    def wait(self) -> None:
        """Return when the device is idle."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], Any]) -> float:
        """Return the median time of `work` after one call that is not counted."""
        times = []
        for _ in range(_NUM_ROUNDS + 1):
            self.wait()
            started = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:])


def versions(card: Card) -> dict[str, Any]:
    """Return the versions of the libraries, and the properties of the card."""
    versions: dict[str, Any] = {"torch": torch.__version__, "transformers": transformers.__version__}
    if card.on_gpu:
        properties = torch.cuda.get_device_properties(0)
        ctypes.CDLL("libnvidia-ml.so.1")
        versions |= {
            "name": properties.name,
            "gib": properties.total_memory / 2**30,
            "cudnn": torch.backends.cudnn.version(),
            "nccl": ".".join(map(str, nccl.version())),
            "flash_attention": torch.backends.cuda.is_flash_attention_available(),
        }
    return versions


def copies(card: Card) -> dict[str, float]:
    """Return GB/s of copies on the device and between it and the host, each byte counted once."""
    size = 2**20 if card.is_small else 2**30
    target, other = (torch.zeros(size, dtype=torch.uint8, device=card.device) for _ in range(2))
    host = torch.zeros(size, dtype=torch.uint8)
    pairs = {"on_device": (other, target), "to_device": (target, host), "to_host": (host, target)}
    if card.on_gpu:
        pinned = host.pin_memory()
        pairs |= {"to_device_pinned": (target, pinned), "to_host_pinned": (pinned, target)}
    return {name: size / card.seconds(partial(to.copy_, source)) / 1e9 for name, (to, source) in pairs.items()}


def attention(card: Card) -> dict[str, dict[str, float]]:
    """Return times of packed attention, and its TFLOP/s at 4 operations per pair and width forward and 10 backward."""
    tokens = 256 if card.is_small else 8192
    prefix = SharedPrefix(start=0, end=tokens // 4, suffix_end=tokens)
    layouts = {
        "one_sequence": row_layout([tokens]),
        "eight_sequences": row_layout([tokens // 8] * 8),
        "shared_prefix": row_layout([tokens // 4] + [tokens // 16] * 12, [prefix]),
        "one_token": row_layout([1]),
    }
    return {name: _attention_rates(card, layout) for name, layout in layouts.items()}


def _attention_rates(card: Card, layout: RowLayout) -> dict[str, float]:
    num_tokens, on_device = sum(layout.lengths), layout.to(card.device)
    query, key, value = (
        card.normal(1, num_tokens, heads, _HEAD_DIM).transpose(1, 2).requires_grad_()
        for heads in (_QUERY_HEADS, _KEY_HEADS, _KEY_HEADS)
    )
    shared = sum((prefix.suffix_end - prefix.end) * (prefix.end - prefix.start) for prefix in layout.prefixes)
    pairs = sum(length * length for length in layout.lengths) / 2 + shared
    operations = pairs * _QUERY_HEADS * _HEAD_DIM / 1e12

    def attend() -> Tensor:
        return packed_attention(nn.Identity(), query, key, value, None, layout=on_device)[0]

    grad = torch.randn_like(attend())
    forward_s = card.seconds(attend)
    backward_s = max(card.seconds(lambda: attend().backward(grad)) - forward_s, 1e-9)
    return {
        "forward_ms": 1e3 * forward_s,
        "backward_ms": 1e3 * backward_s,
        "forward_tflops": 4 * operations / forward_s,
        "backward_tflops": 10 * operations / backward_s,
    }


def vocabulary(card: Card) -> dict[str, float]:
    """Return the time of log-probabilities over a large vocabulary, forward alone and with the backward pass."""
    num_tokens, size, width = (64, 2048, 64) if card.is_small else (7168, 151936, 1536)
    hidden_NW, head_VW = card.normal(num_tokens, width).requires_grad_(), card.normal(size, width).requires_grad_()
    targets_N = torch.randint(size, (num_tokens,), device=card.device)

    def score() -> Tensor:
        return vocabulary_scores(hidden_NW, head_VW, targets_N, temperature=1.0, entropy_gradient=False)[0]

    def train() -> None:
        hidden_NW.grad = head_VW.grad = None
        score().mean().backward()

    return {"forward_ms": 1e3 * card.seconds(score), "both_ms": 1e3 * card.seconds(train)}


def decoding(card: Card) -> dict[str, list[float]]:
    """Return the milliseconds of attention over a cache at lengths that are new each time, with cuDNN's kernel and without."""
    was_enabled = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        return {
            name: [round(_new_length_ms(card, length, cudnn=cudnn), 2) for length in lengths]
            for name, cudnn, lengths in (("cudnn", True, range(700, 708)), ("without", False, range(800, 816)))
        }
    finally:
        torch.backends.cuda.enable_cudnn_sdp(was_enabled)


def _new_length_ms(card: Card, length: int, *, cudnn: bool) -> float:
    torch.backends.cuda.enable_cudnn_sdp(cudnn)
    query = card.normal(64, _KEY_HEADS, _QUERY_HEADS // _KEY_HEADS, _HEAD_DIM)
    keys = card.normal(64, _KEY_HEADS, 1024, _HEAD_DIM)[:, :, :length]
    mask = torch.ones(64, 1, 1, length, dtype=torch.bool, device=card.device)
    card.wait()
    started = time.perf_counter()
    functional.scaled_dot_product_attention(query, keys, keys, attn_mask=mask)
    card.wait()
    return 1e3 * (time.perf_counter() - started)


def process_group(card: Card) -> dict[str, float]:
    """Return how long the process group of the weight broadcast takes to form, to send, and to abort."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    source = WeightSource(
        transport=Transport.BROADCAST, address="", size_bytes=0, tensors=(), publisher="probe", serial=1
    )
    group = BroadcastGroup(card.device, timeout_s=60.0)
    octets = torch.ones(2**20, dtype=torch.uint8, device=card.device)
    started = time.perf_counter()
    group.of(source, 0, store).broadcast(octets, 0).wait(timedelta(seconds=60))
    card.wait()
    sent = time.perf_counter()
    group.leave()
    return {"formed_and_sent_s": sent - started, "aborted_s": time.perf_counter() - sent}


PROBES: Mapping[str, Callable[[Card], Mapping[str, Any]]] = {
    "versions": versions,
    "copies, GB/s": copies,
    "packed attention": attention,
    "vocabulary": vocabulary,
    "attention of one decoding step, ms per new length": decoding,
    "process group of one": process_group,
}


def main(words: Sequence[str] | None = None) -> int:
    """Run every probe and print its figures; return 1 if a probe failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="small sizes, also without a GPU")
    card, status = Card(is_tiny=parser.parse_args(words).tiny), 0
    for name, probe in PROBES.items():
        try:
            figures = probe(card)
        except Exception:  # noqa: BLE001  the other probes are worth as much without this one
            figures = {"error": traceback.format_exc()[-1500:]}
            status = 1
        print(json.dumps({"probe": name, **figures}), flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
