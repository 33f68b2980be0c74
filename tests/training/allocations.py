"""PyTorch's memory on a CPU, as its profiler counts it, independent of other processes."""

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def peak_allocated_bytes(function: Callable[[], object]) -> int:
    """Run a function, and return the peak of the memory that it allocated."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        function()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
        peak = max(peak, held)
    return peak


def weight_bytes(model: torch.nn.Module) -> int:
    """Return the bytes of all weights, tied ones once."""
    return sum(weight.nbytes for weight in model.parameters())
