"""Where a run keeps things: what is a folder of this machine, and what is the URL of a store."""

import re
from dataclasses import asdict
from typing import Any

from agentrl.config.flatten import flatten
from agentrl.errors import ConfigError

_BEGINS_AS_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
"""A scheme has two letters at least, as `C:` is none."""
_BEGINS_AS_STORE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|abfss?|az|oss|oci|hdfs|hf|https?|s?ftp):)",
    re.IGNORECASE,
)
"""With a slash any scheme will do, and without one those of the usual stores: other folders may have a colon in their names."""


_KEYS = frozenset({"dir", "path", "output_dir", "chat_template", "tool_config_path", "train_files", "validation_files"})
"""Last parts of the keys that name files or folders."""
_MAX_NAME_BYTES = 255
_MAX_PLACE_BYTES = 4095


def check_name(place: str, *, key: str) -> None:
    """Refuse what no file system can have as the name of a file or a folder.

    Args:
        place: what is given.
        key: where it was given, for the message.

    Raises:
        ConfigError: it is empty, too long, or holds a null character.
    """
    if not place.strip():
        raise ConfigError(f"{key} is empty; name a file or a folder, or leave the key out")
    encoded = place.encode("utf-8", "surrogateescape")
    if "\0" in place:
        raise ConfigError(f"{key} holds a null character, which no name of a file can have")
    if len(encoded) > _MAX_PLACE_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        raise ConfigError(
            f"{key} is {len(encoded)} bytes long ({place[:40]!r}...), and a name in a path may have {_MAX_NAME_BYTES}; "
            "shorten it"
        )


def check_names(config: Any, *, source: str) -> None:
    """Refuse names that no file can have in a config tree; see `check_name`."""
    for key, value in flatten(asdict(config)).items():
        if key.rpartition(".")[2] in _KEYS and not key.startswith("cluster."):
            for place in value if isinstance(value, list) else [value]:
                if isinstance(place, str):
                    check_name(place, key=f"{source}: `{key}`")


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
