"""Messages between processes that wait for each other, by name and with a deadline."""

import contextlib
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WAIT_TIMEOUT_S


class Rendezvous:
    """One of several processes that leave messages for each other in a store."""

    def __init__(self, store: Store, about: str, *, me: str, timeout_s: float = WAIT_TIMEOUT_S) -> None:
        """Join with the name `me`; `about` is the subject, the same for all processes and used only once."""
        self._store = dist.PrefixStore(about, store)  # pyright: ignore[reportPrivateImportUsage]
        self._about = about
        self._me = me
        self._timeout_s = timeout_s
        self._published: list[str] = []

    def publish(self, event: str, message: bytes = b"-") -> None:
        """Publish that this process has reached `event`; raise `EngineError` if the store is gone."""
        key = f"{event}/{self._me}"
        try:
            self._store.set(key, message)  # pyright: ignore[reportArgumentType]
        except dist.DistError as error:
            raise EngineError(
                f"weight sync {self._about}: `{self._me}` cannot publish `{event}`: the process that keeps the store is gone"
            ) from error
        self._published.append(key)

    def wait(self, event: str, others: Sequence[str]) -> dict[str, bytes]:
        """Wait until all `others` have published `event`; return their messages.

        Raises:
            EngineError: not all of them did in time; the error names the missing ones.
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
        """Delete this process's messages, once everybody has read them."""
        with contextlib.suppress(dist.DistError):  # the store is gone, and the messages with it
            for key in self._published:
                self._store.delete_key(key)

    def _missing(self, keys: dict[str, str]) -> list[str]:
        try:
            return [other for other, key in keys.items() if not self._store.check([key])]
        except dist.DistError:
            return []
