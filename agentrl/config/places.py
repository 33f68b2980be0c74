"""Checks of file names, local folders and URLs of stores in a config."""

import re
from dataclasses import asdict
from typing import Any

from agentrl.config.plain import flatten
from agentrl.errors import ConfigError

_BEGINS_AS_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
"""Start of a URL; a scheme has at least two letters, so `C:` is none."""
_BEGINS_AS_STORE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|abfss?|az|oss|oci|hdfs|hf|https?|s?ftp):)",
    re.IGNORECASE,
)
"""Start of a store's URL: any scheme before a slash, or a known store's scheme without one (folder names may hold colons)."""


_KEYS = frozenset({"dir", "path", "output_dir", "chat_template", "tool_config_path", "train_files", "validation_files"})
"""Last parts of the keys that name files or folders."""
_MAX_NAME_BYTES = 255
_MAX_PLACE_BYTES = 4095


def check_name(place: str, *, key: str) -> None:
    """Refuse a name that no file system allows for a file or folder.

    Args:
        place: name to check.
        key: config key of the name, for the message.

    Raises:
        ConfigError: the name is empty, too long, or holds a null character.
    """
    if not place.strip():
        raise ConfigError(f"{key} is empty; name a file or a folder, or leave the key out")
    encoded = place.encode("utf-8", "surrogateescape")
    if "\0" in place:
        raise ConfigError(f"{key} holds a null character, which a file name cannot contain")
    if len(encoded) > _MAX_PLACE_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        raise ConfigError(
            f"{key} is {len(encoded)} bytes long ({place[:40]!r}...); a name in a path may have {_MAX_NAME_BYTES}. "
            "Shorten it"
        )


def check_names(config: Any, *, source: str) -> None:
    """Refuse invalid file names in a config tree; see `check_name`."""
    for key, value in flatten(asdict(config)).items():
        if key.rpartition(".")[2] in _KEYS and not key.startswith("cluster."):
            for place in value if isinstance(value, list) else [value]:
                if isinstance(place, str):
                    check_name(place, key=f"{source}: `{key}`")


def is_url(place: str) -> bool:
    """Return whether `place` is the URL of a store, such as `s3://bucket/runs/demo`, and not a local folder."""
    return "://" in place


def check_folder(place: str, *, key: str, instead: str) -> None:
    """Check that `place` is a local folder and not a store; `s3:bucket` would become a folder of that name.

    Args:
        place: name to check.
        key: config key of the name, for the message.
        instead: way out for the message, such as a key that accepts a URL.

    Raises:
        ConfigError: `place` is a URL, or a URL without its slashes.
    """
    if _BEGINS_AS_STORE.match(place):
        raise ConfigError(f"{key} is {place!r}, a URL; it must be a folder of this machine. {instead}")


def check_folder_or_url(place: str, *, key: str) -> None:
    """Check that a name that starts like a URL is a valid URL; `s3:/bucket` would become a folder `s3:`.

    Raises:
        ConfigError: `place` is neither a URL nor clearly a folder; the message suggests a URL.
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
