"""The way into a Ray cluster that is running: is there one, does it ask for a token, and does it take this machine's."""

import logging
import os
import socket
import subprocess
import sys
from typing import Any

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray.exceptions import AuthenticationError

from agentrl.cluster import asks_for_token
from agentrl.cluster.job_environment import refused_fields
from agentrl.errors import ConfigError

_PROBE_TIMEOUT_S = 10.0
"""For a connection to the head; Ray itself would try for a quarter of an hour, deaf to signals."""
_ANSWER_TIMEOUT_S = 120.0
"""For the head's answer. Ray gives up by itself after 40 s, and its modules must be read first."""

_TOKEN_RULE = (
    "A cluster with a token needs the same `~/.ray/auth_token` and `RAY_AUTH_MODE=token` on every machine, one without "
    "`RAY_AUTH_MODE=disabled`"
)


def join(address: str, runtime_env: dict[str, Any]) -> None:
    """Make this process a driver of the cluster at `address`.

    Raises:
        ConfigError: there is none, it does not take this machine's token, or this process is in a Ray job that sets the
            same as `runtime_env`.
    """
    if refused := refused_fields(runtime_env):
        raise ConfigError(
            f"the Ray job that this run is in sets {' and '.join(f'`{field}`' for field in refused)}, and so does the run: its "
            "workers get the Python files beside the config as `working_dir`, and the folders that this process searches as "
            "`PYTHONPATH`. Start the run with `RAY_OVERRIDE_JOB_RUNTIME_ENV=1`, by which the run's are taken, or submit the "
            "job without these fields"
        )
    if address != "auto":
        _require_listener(address)
    if _wants_token(address):
        # `ray start --head` uses a token by itself where it finds one; a driver with an explicit address would not.
        logging.getLogger(maybe_enable_token_auth_if_token_available.__module__).setLevel(logging.ERROR)
        if not maybe_enable_token_auth_if_token_available(warn_if_disabled=False):
            raise ConfigError(
                f"`cluster.address` is `{address}`, and the cluster there asks for a token, of which there is none on this "
                f"machine, or which `RAY_AUTH_MODE` forbids. {_TOKEN_RULE}"
            )
    elif os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        # The head would take the driver for dead, and end what it starts.
        raise ConfigError(f"`cluster.address` is `{address}`, and the cluster there has no token. {_TOKEN_RULE}")
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True, runtime_env=runtime_env)
    except (ConnectionError, ValueError, AuthenticationError) as error:
        raise ConfigError(_not_joined(address, str(error))) from error


def _require_listener(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_PROBE_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"`cluster.address` is `{address}`, and nothing listens there: {error}. Start Ray on that machine with "
            "`ray start --head --port=...`, or leave the key out, and the run starts a Ray of its own"
        ) from error


def _wants_token(address: str) -> bool:
    question = [sys.executable, "-m", asks_for_token.__name__, address]
    mode = {"RAY_AUTH_MODE": "disabled"}
    try:
        asked = subprocess.run(
            question,
            env=os.environ | mode,
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            start_new_session=True,  # Ctrl-C is for this process
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(_not_joined(address, f"no answer in {_ANSWER_TIMEOUT_S:g} s")) from error
    if asked.returncode not in (asks_for_token.ANSWERS, asks_for_token.ASKS_FOR_TOKEN):
        raise ConfigError(_not_joined(address, asked.stdout.strip() or asked.stderr[-500:].strip()))
    return asked.returncode == asks_for_token.ASKS_FOR_TOKEN


def _not_joined(address: str, why: str) -> str:
    return (
        f"`cluster.address` is `{address}`, and no Ray cluster can be joined there: {why}. `ray status --address {address}` "
        f"must answer on this machine. {_TOKEN_RULE}. Without `cluster.address` the run starts a Ray of its own"
    )
