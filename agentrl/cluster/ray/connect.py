"""Joining a running Ray cluster: whether one listens, wants a token, and accepts this machine's token is checked first."""

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR
from ray.exceptions import AuthenticationError

from agentrl.cluster.ray import asks_for_token
from agentrl.errors import ConfigError

_OVERRIDE = "RAY_OVERRIDE_JOB_RUNTIME_ENV"
"""Ray's variable that lets the driver's fields win."""


def fields_of_job() -> set[str]:
    """Return the fields of the job's runtime environment, variables as `env_vars.PYTHONPATH`; empty outside a job."""
    job = json.loads(os.environ.get(RAY_JOB_CONFIG_JSON_ENV_VAR, "{}"))
    return _fields(job.get("runtime_env") or {})


def refused_fields(runtime_env: Mapping[str, Any]) -> list[str]:
    """Return the fields for which Ray would refuse a driver with this runtime environment."""
    if os.environ.get(_OVERRIDE) == "1":
        return []
    return sorted(fields_of_job() & _fields(runtime_env))


def _fields(runtime_env: Mapping[str, Any]) -> set[str]:
    variables = runtime_env.get("env_vars") or {}
    return {field for field in runtime_env if field != "env_vars"} | {f"env_vars.{name}" for name in variables}


_PROBE_TIMEOUT_S = 10.0
"""Limit for connecting to the head; Ray itself would try for a quarter of an hour, deaf to signals."""
_ANSWER_TIMEOUT_S = 120.0
"""Limit for the head's answer, the import of Ray included; Ray itself gives up after 40 s."""

_TOKEN_RULE = (
    "A cluster with a token needs the same `~/.ray/auth_token` and `RAY_AUTH_MODE=token` on every machine, one without "
    "`RAY_AUTH_MODE=disabled`"
)


def join(address: str, runtime_env: dict[str, Any]) -> None:
    """Make this process a driver of the cluster at `address`.

    Raises:
        ConfigError: there is no cluster, it refuses this machine's token, or this process is in a Ray job that sets fields of
            `runtime_env`.
    """
    if refused := refused_fields(runtime_env):
        raise ConfigError(
            f"the Ray job of this run sets {' and '.join(f'`{field}`' for field in refused)}, and so does the run "
            "(`working_dir`: the Python files beside the config, `PYTHONPATH`: the search path of this process). Start the run "
            "with `RAY_OVERRIDE_JOB_RUNTIME_ENV=1`, so that the run's are taken, or submit the job without these fields"
        )
    if address != "auto":
        _require_listener(address)
    if _wants_token(address):
        # A driver with an explicit address does not use a token by itself, unlike `ray start --head`.
        logging.getLogger(maybe_enable_token_auth_if_token_available.__module__).setLevel(logging.ERROR)
        if not maybe_enable_token_auth_if_token_available(warn_if_disabled=False):
            raise ConfigError(
                f"`cluster.address` is `{address}`, whose cluster asks for a token; this machine has none, or `RAY_AUTH_MODE` "
                f"forbids it. {_TOKEN_RULE}"
            )
    elif os.environ.get("RAY_AUTH_MODE", "").lower() == "token":
        # The head would treat the driver as dead, and end what it starts.
        raise ConfigError(f"`cluster.address` is `{address}`, whose cluster has no token. {_TOKEN_RULE}")
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
            "`ray start --head --port=...`, or leave the key out: the run then starts its own Ray"
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
            start_new_session=True,  # Ctrl-C must reach this process only
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(_not_joined(address, f"no answer in {_ANSWER_TIMEOUT_S:g} s")) from error
    if asked.returncode not in (asks_for_token.ANSWERS, asks_for_token.ASKS_FOR_TOKEN):
        raise ConfigError(_not_joined(address, asked.stdout.strip() or asked.stderr[-500:].strip()))
    return asked.returncode == asks_for_token.ASKS_FOR_TOKEN


def _not_joined(address: str, why: str) -> str:
    return (
        f"`cluster.address` is `{address}`, and no Ray cluster can be joined there: {why}. `ray status --address {address}` "
        f"must answer on this machine. {_TOKEN_RULE}. Without `cluster.address` the run starts its own Ray"
    )
