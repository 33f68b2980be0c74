"""Attention over packed rows in bfloat16, compared with a plain softmax in float32: values and gradients.

Needs only torch, transformers and pytest:
`python -m pytest -c /dev/null --rootdir . -p no:cacheprovider tests/training/attention/test_half_precision_attention.py`.
"""

import pytest
import torch
from torch import Tensor, nn

from agentrl.training.attention.merged import window_mask
from agentrl.training.attention.packed import packed_attention
from agentrl.training.packing.row_layout import RowLayout, SharedPrefix, row_layout

QUERY_HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 64
WINDOW = 48
RELATIVE = 1e-2
"""Tolerance relative to the norm: bfloat16 has eight bits."""

LAYOUTS = {
    "segments alone": row_layout([200, 130, 64, 7, 1]),
    "shared prefixes": row_layout(
        [150, 90, 33, 1, 20, 5, 5, 70],
        [SharedPrefix(start=0, end=150, suffix_end=274), SharedPrefix(start=274, end=294, suffix_end=304)],
    ),
    "a continuation of one token": row_layout([16, 1], [SharedPrefix(start=0, end=16, suffix_end=17)]),
    "a single token": row_layout([1]),
}


def visible(layout: RowLayout, window: int | None) -> Tensor:
    """Return `[T, T]`: True where a token attends to another."""
    num_tokens = sum(layout.lengths)
    segment = torch.arange(len(layout.lengths)).repeat_interleave(torch.tensor(layout.lengths))
    mask = (segment[:, None] == segment[None]).tril()
    position = torch.cat([torch.arange(length) for length in layout.lengths])
    for prefix in layout.prefixes:
        mask[prefix.end : prefix.suffix_end, prefix.start : prefix.end] = True
        position[prefix.end : prefix.suffix_end] += prefix.end - prefix.start
    assert mask.shape == (num_tokens, num_tokens)
    return mask if window is None else mask & (position[:, None] - position[None] < window)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, layout: RowLayout, window: int | None, sinks_H: Tensor | None
) -> Tensor:
    key, value = (states.repeat_interleave(QUERY_HEADS // KEY_HEADS, dim=1) for states in (key, value))
    scores = (query @ key.transpose(2, 3) / HEAD_DIM**0.5).masked_fill(~visible(layout, window), -torch.inf)
    if sinks_H is not None:
        scores = torch.cat([scores, sinks_H[None, :, None, None].expand(1, -1, scores.shape[2], 1)], dim=-1)
    return (scores.softmax(-1)[..., : key.shape[2]] @ value).transpose(1, 2)


def assert_near(actual: Tensor | None, expected: Tensor | None) -> None:
    assert actual is not None
    assert expected is not None
    assert actual.dtype == torch.bfloat16
    assert (actual.float().cpu() - expected).norm() <= RELATIVE * expected.norm()


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")],
        ),
    ],
)
@pytest.mark.parametrize("window", [None, WINDOW])
@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_values_and_gradients_match_a_plain_softmax(device: str, name: str, has_sinks: bool, window: int | None):
    layout, draws = LAYOUTS[name], torch.Generator().manual_seed(0)
    num_tokens = sum(layout.lengths)
    drawn = [torch.randn(1, num_tokens, heads, HEAD_DIM, generator=draws) for heads in (QUERY_HEADS, *[KEY_HEADS] * 2)]
    query, key, value = (states.bfloat16().to(device).transpose(1, 2).requires_grad_() for states in drawn)
    sinks = torch.randn(QUERY_HEADS, generator=draws).bfloat16().to(device).requires_grad_() if has_sinks else None
    exact_query, exact_key, exact_value = (
        states.detach().float().cpu().requires_grad_() for states in (query, key, value)
    )
    exact_sinks = sinks.detach().float().cpu().requires_grad_() if sinks is not None else None
    weights = torch.randn(1, num_tokens, QUERY_HEADS, HEAD_DIM, generator=draws).bfloat16()
    mixed, _ = packed_attention(
        nn.Identity(),
        query,
        key,
        value,
        None,
        layout=layout.to(torch.device(device)),
        sliding_window=window,
        s_aux=sinks,
    )
    expected = plain_attention(exact_query, exact_key, exact_value, layout, window, exact_sinks)
    assert_near(mixed, expected)
    mixed.backward(weights.to(device))
    expected.backward(weights.float())
    assert_near(value.grad, exact_value.grad)
    if num_tokens > 1 or has_sinks:  # with a single key, queries and keys have no gradient
        assert_near(query.grad, exact_query.grad)
        assert_near(key.grad, exact_key.grad)
    if sinks is not None and exact_sinks is not None:
        assert_near(sinks.grad, exact_sinks.grad)


def test_a_window_mask_is_built_once_and_works_with_gradients():
    states = torch.ones(1, requires_grad=True)
    with torch.inference_mode():
        built = window_mask(301, WINDOW, states)
    mask = window_mask(301, WINDOW, states)
    assert mask is not None
    assert mask is built
    (mask.exp() * states).sum().backward()
    assert states.grad == sum(min(WINDOW, position + 1) for position in range(301))
    assert window_mask(301, WINDOW, states.bfloat16()) is not mask
    assert window_mask(301, 301, states) is None
