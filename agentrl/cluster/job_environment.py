"""What `ray job submit` has set for all processes of a job: Ray refuses a driver that sets the same once more."""

import json
import os
from collections.abc import Mapping
from typing import Any

from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

_OVERRIDE = "RAY_OVERRIDE_JOB_RUNTIME_ENV"
"""Of Ray's variables that which lets the driver's fields win."""


def fields_of_job() -> set[str]:
    """Return the fields of the runtime environment of the job that this process is in; none outside of one.

    Variables are fields of their own, such as `env_vars.PYTHONPATH`.
    """
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
