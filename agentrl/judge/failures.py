"""What can become of one request to a judge other than verdicts; what to do about it is the client's business."""


class NotJudgedError(Exception):
    """A try that gave no verdict, and may be repeated; raised as one of its two kinds."""


class BrokenError(NotJudgedError):
    """No reply, half a reply, or one that no healthy judge gives (a 503 of one that is stopping among them)."""


class BusyError(NotJudgedError):
    """The judge is well, and asks for patience: `retry_after_s` seconds of it."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RefusedError(Exception):
    """The judge will not take this request, however often it is sent."""
