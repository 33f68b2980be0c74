"""Failures of one request to a judge; the client decides about retries."""


class NotJudgedError(Exception):
    """A try without a verdict, which may be repeated; raised as `BrokenError` or `BusyError`."""


class BrokenError(NotJudgedError):
    """No reply, half a reply, or one of an unhealthy judge, such as a 503 while it stops."""


class BusyError(NotJudgedError):
    """The judge is full and asks to retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RefusedError(Exception):
    """The judge refuses this request; a retry is useless."""
