"""Runtime environment set by `ray job submit`: Ray refuses a driver that sets the same fields again."""

import json
import os
from collections.abc import Mapping
from typing import Any

from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

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
