"""Parts of attention over a packed row, and the kernels that compute them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class Part(NamedTuple):
    """One kernel call; those within segments come first, and cover the row."""

    queries: "Tokens"
    keys: "Tokens"
    is_causal: bool
    """True within segments; else every query attends to every key."""
    window: int | None = None
    """Limit of the tokens that a query attends to in its segment, itself included; None: no limit."""


class Tokens(Protocol):
    """A selection of tokens of the row, in a kernel's shape."""

    def take(self, states_THX: Tensor, /) -> Tensor:
        """Return the states of the selected tokens in the kernel's shape."""
        ...

    def put(self, states_THX: Tensor, states: Tensor, /) -> None:
        """Overwrite the states of the selected tokens, given in the kernel's shape."""
        ...

    def add(self, states_THX: Tensor, states: Tensor, /) -> None:
        """Add to the states of the selected tokens, given in the kernel's shape."""
        ...


class Kernel(Protocol):
    """Attention that returns its `lse`, with a backward pass from the `out` and `lse` of the whole."""

    def forward(
        self, part: Part, query: Tensor, key: Tensor, value: Tensor, scale: float | None, /
    ) -> tuple[Tensor, Tensor]:
        """Return `out`, shaped as `query`, and `lse`, without the last dimension."""
        ...

    def backward(
        self,
        part: Part,
        grad_out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        lse: Tensor,
        scale: float | None,
        /,
    ) -> Sequence[Tensor]:
        """Return the gradients of query, key and value."""
        ...
