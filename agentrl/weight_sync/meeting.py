"""Processes that wait for each other, by name and with a deadline."""

import contextlib
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WAIT_TIMEOUT_S


class Meeting:
    """One of several processes that leave messages for each other at a store."""

    def __init__(self, store: Store, about: str, *, me: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Meet the others.

        Args:
            store: what all of them are connected to.
            about: what the meeting is about; the same for all, and used once. It begins every error.
            me: the name under which the others wait for this process.
            timeout_s: for how long it waits for the others.
        """
        self._store = dist.PrefixStore(about, store)  # pyright: ignore[reportPrivateImportUsage]
        self._about = about
        self._me = me
        self._timeout_s = timeout_s
        self._told: list[str] = []

    def tell(self, event: str, message: bytes = b"-") -> None:
        """Let the others know that `event` has come for this process.

        Raises:
            EngineError: the store is gone.
        """
        key = f"{event}/{self._me}"
        try:
            self._store.set(key, message)  # pyright: ignore[reportArgumentType]
        except dist.DistError as error:
            raise EngineError(
                f"weight sync {self._about}: `{self._me}` cannot tell `{event}`: the process that keeps the store is gone"
            ) from error
        self._told.append(key)

    def hear(self, event: str, others: Sequence[str]) -> dict[str, bytes]:
        """Wait until `event` has come for every one of `others`; returns what they told.

        Raises:
            EngineError: it did not come in time; the message names those who are missing.
        """
        keys = {other: f"{event}/{other}" for other in others}
        try:
            if keys:
                self._store.wait(list(keys.values()), timedelta(seconds=self._timeout_s))
            return {other: self._store.get(key) for other, key in keys.items()}
        except dist.DistError as error:
            missing = ", ".join(self._missing(keys)) or "the process that keeps the store"
            raise EngineError(
                f"weight sync {self._about}: `{self._me}` waited {self._timeout_s:g} s for `{event}`; "
                f"missing: {missing}. It may have died, hang, or have failed: see its log"
            ) from error

    def close(self) -> None:
        """Take back what this process has told; all who need it have heard it."""
        with contextlib.suppress(dist.DistError):  # who keeps the store is gone, and what was told with it
            for key in self._told:
                self._store.delete_key(key)

    def _missing(self, keys: dict[str, str]) -> list[str]:
        try:
            return [other for other, key in keys.items() if not self._store.check([key])]
        except dist.DistError:
            return []
