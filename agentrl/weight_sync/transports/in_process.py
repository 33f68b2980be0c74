"""Weights within one process: the engine reads the actor's own tensors, without a copy."""

import os
import uuid
from collections.abc import Mapping

from torch import Tensor

from agentrl.errors import EngineError
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.tensor_layout import lay_out, size_of

_offered: dict[str, Mapping[str, Tensor]] = {}
"""Tensors on offer, keyed by publisher."""


class InProcessPublisher:
    """Publisher for the engines of this process; tensors must not change before every engine has copied them."""

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex

    def publish(self, weights: Mapping[str, Tensor]) -> WeightSource:
        """Offer `weights` instead of the last ones."""
        _offered[self._name] = weights
        specs = lay_out({name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()})
        return WeightSource(
            transport=Transport.IN_PROCESS,
            address=str(os.getpid()),
            size_bytes=size_of(specs),
            tensors=specs,
            publisher=self._name,
        )

    def close(self) -> None:
        """Withdraw the offer."""
        _offered.pop(self._name, None)


def offered_weights(source: WeightSource) -> Mapping[str, Tensor]:
    """Return the tensors that a publisher of this process offers.

    Raises:
        EngineError: this process has no such publisher, or it has closed.
    """
    try:
        return _offered[source.publisher]
    except KeyError:
        raise EngineError(
            f"weights of process {source.address}: nothing is offered in process {os.getpid()}; only an engine in the "
            "actor's own process can read them"
        ) from None
