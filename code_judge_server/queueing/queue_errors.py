"""Why the queue takes a request not in, and when it may be sent again."""


class _NotTakenInError(Exception):
    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class QueueFullError(_NotTakenInError):
    """There is no room; `retry_after_s` is when there should be."""


class DrainingError(_NotTakenInError):
    """The server is stopping; `retry_after_s` is when another should be in its place."""
