"""Reasons why the queue refuses a request, and the time after which it may be sent again."""


class _NotAcceptedError(Exception):
    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(_NotAcceptedError):
    """The queue has no room; there should be some after `retry_after_s`."""


class DrainingError(_NotAcceptedError):
    """The server is stopping; another should have replaced it after `retry_after_s`."""
