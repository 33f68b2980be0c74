"""Where a run keeps things: what is a folder of this machine, and what is the URL of a store."""

import re

from agentrl.errors import ConfigError

_BEGINS_AS_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
"""A scheme has two letters at least, as `C:` is none."""
_BEGINS_AS_STORE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|abfss?|az|oss|oci|hdfs|hf|https?|s?ftp):)",
    re.IGNORECASE,
)
"""With a slash any scheme will do, and without one those of the usual stores: other folders may have a colon in their names."""


def is_url(place: str) -> bool:
    """Return whether it names a store, such as `s3://bucket/runs/demo`, and no folder of this machine."""
    return "://" in place


def check_folder(place: str, *, key: str, instead: str) -> None:
    """Check that a folder of this machine is named and no store; `s3:bucket` would become a folder of that name.

    Args:
        place: what is given.
        key: where it was given, for the message.
        instead: what may be a URL, for the message.

    Raises:
        ConfigError: it is a URL, or one of which a slash is missing.
    """
    if _BEGINS_AS_STORE.match(place):
        raise ConfigError(f"{key} is {place!r}, a URL; it must be a folder of this machine. {instead}")


def check_folder_or_url(place: str, *, key: str) -> None:
    """Check that what begins as a URL does is one; `s3:/bucket` would become a folder `s3:`.

    Raises:
        ConfigError: it is neither a URL nor clearly a folder; the message has the URL that may be meant.
    """
    matched = _BEGINS_AS_URL.fullmatch(place)
    if matched is None or is_url(place):
        return
    path = matched["rest"].lstrip("/")
    if matched["scheme"] in ("file", "local"):
        meant = f"Did you mean `{matched['rest']}`?"
    else:
        meant = (
            f"Did you mean `{matched['scheme']}://{path}`?"
            if path[:1].isalnum()
            else "A URL has `://` after its scheme."
        )
    raise ConfigError(
        f"{key} is {place!r}, neither a folder nor a URL. {meant} (A folder of this machine with such a name begins with `./`.)"
    )
