"""Ray for one run: started on this machine and ended with all of its processes, or joined and left."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants
from ray.exceptions import AuthenticationError

from agentrl.cluster.ray.lost_ray import watch_control_store
from agentrl.cluster.ray.user_modules import stage, worker_path
from agentrl.cluster.ray.worker_output import log_worker_output
from agentrl.errors import ConfigError
from agentrl.guardian import MARK, Guardian

logger = logging.getLogger(__name__)

_SET_EVERY_S = 0.02
_SEVERAL_MACHINES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's variable; read on Linux too, despite its name."""
_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Ray's variable with the settings of a job, for the job's driver."""


@contextlib.contextmanager
def guarded_run() -> Iterator[Path]:
    """Mark this process and its children as one run, and yield a temporary folder for the run.

    The marked processes and the folder are removed within seconds of this process's end, even by `kill -9`.
    """
    mark = secrets.token_hex(16)
    temp_dir = Path(tempfile.mkdtemp(prefix="agentrl-"))
    guardian = Guardian(mark=mark, temp_dir=temp_dir)
    os.environ[MARK] = mark
    try:
        yield temp_dir
    finally:
        del os.environ[MARK]
        guardian.dismiss()


@contextlib.contextmanager
def ray_runtime(
    *, num_cpus: int, temp_dir: Path, user_folder: Path, keep_logs_in: Path, address: str | None = None
) -> Iterator[None]:
    """Start Ray on this machine, and stop it; or join a running cluster, and leave it.

    Args:
        address: address of a running cluster; absent: Ray is started here, protected by a token.
        num_cpus: logical processors to declare; may exceed the real ones, since our workers mostly take turns.
        temp_dir: folder of Ray's own files.
        user_folder: folder whose Python files and packages (tools, rewards) every worker can import.
        keep_logs_in: folder for Ray's logs if the run fails.

    Raises:
        ConfigError: no cluster at `address` accepts this machine, or Ray cannot be started.
    """
    # Lost results of dead processes that nobody awaits are no errors; all others are awaited.
    os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    runtime_env = _runtime_env(user_folder, temp_dir, on_cluster=address is not None)
    # One thread for the whole run: in the main thread Ray sets a SIGTERM handler, and its processes end with their thread.
    with ThreadPoolExecutor(max_workers=1) as ray_thread:
        if address is None:
            _call(ray_thread, handlers, _start, num_cpus, temp_dir, runtime_env)
            watch_control_store()
        else:
            _call(ray_thread, handlers, _join, address, runtime_env)
        log_worker_output()
        try:
            yield
        except Exception:
            if address is None:  # a cluster keeps its own logs
                _keep_logs(temp_dir, keep_logs_in)
            raise
        finally:
            _call(ray_thread, handlers, ray.shutdown)


def _call(
    thread: ThreadPoolExecutor, handlers: Mapping[signal.Signals, Any], function: Callable[..., None], *args: Any
) -> None:
    """Call `function` in `thread`, and keep `handlers` set meanwhile: Ray replaces or removes them below Python."""
    call = thread.submit(function, *args)
    while True:
        is_done = bool(wait([call], timeout=_SET_EVERY_S).done)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if is_done:
            return call.result()


def _keep_logs(temp_dir: Path, folder: Path) -> None:
    try:
        shutil.copytree(temp_dir / "ray" / "session_latest" / "logs", folder, dirs_exist_ok=True)
        for inner in folder.glob("**/"):
            inner.chmod(inner.stat().st_mode & ~0o022)  # Ray lets everybody write
        logger.warning("the run failed; Ray's logs are in %s", folder)
    except OSError as error:
        logger.warning("the run failed, and Ray's logs could not be kept: %s", error)


def _join(address: str, runtime_env: dict[str, Any]) -> None:
    """Make this process a driver of the cluster at `address`.

    Raises:
        ConfigError: there is no cluster, or it refuses this machine's token.
    """
    # In a Ray job both set a search path, and the run's contains the job's.
    os.environ.setdefault("RAY_OVERRIDE_JOB_RUNTIME_ENV", "1")
    # One try, of 40 s: the twenty by default take a quarter of an hour.
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=True, runtime_env=runtime_env)
    except (ConnectionError, ValueError, AuthenticationError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[-1]
        raise ConfigError(
            f"`cluster.address` is `{address}`, and no Ray cluster can be joined there: {reason} A cluster with a token needs "
            "the same `~/.ray/auth_token` and `RAY_AUTH_MODE=token` on every machine, also for this command; one without "
            f"`RAY_AUTH_MODE=disabled`. `ray status --address {address}` must answer on this machine"
        ) from error


def _start(num_cpus: int, temp_dir: Path, runtime_env: dict[str, Any]) -> None:
    try:
        with _on_loopback_only():
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                logging_level=logging.ERROR,
                log_to_driver=True,
                runtime_env=runtime_env,
                _node_ip_address="127.0.0.1",
                _temp_dir=str(temp_dir / "ray"),
            )
        _hide_token()
    except (OSError, ValueError, AuthenticationError) as error:  # also a `TMPDIR` too long for Ray's sockets
        raise ConfigError(
            f"Ray cannot be started on this machine: {error}. Look at `RAY_AUTH_MODE` and `TMPDIR`"
        ) from error


def _hide_token() -> None:
    """Make Ray's token, which allows to run code as this user, unreadable for other users."""
    file = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)


@contextlib.contextmanager
def _on_loopback_only() -> Iterator[None]:
    """Make Ray bind every port to loopback.

    By default it replaces a loopback address by that of an interface and listens on all interfaces, unless clusters of several
    machines are off, as on systems other than Linux. The public switch is a variable that `import ray` reads; then it is not
    known yet if the run joins a cluster.
    """
    before, of_user = ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(_SEVERAL_MACHINES)
    ray_constants.ENABLE_RAY_CLUSTER = False
    os.environ[_SEVERAL_MACHINES] = "0"  # for the processes that Ray starts
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[_SEVERAL_MACHINES]
        if of_user is not None:
            os.environ[_SEVERAL_MACHINES] = of_user


def _runtime_env(user_folder: Path, temp_dir: Path, *, on_cluster: bool) -> dict[str, Any]:
    """Ship the user's modules, and give the workers this process's search path; see `user_modules`."""
    env: dict[str, Any] = {}
    in_job, path = _JOB in os.environ, worker_path()
    # An empty path hides a node's own from the workers; a job's path reaches them anyway.
    if path or not in_job:
        env["env_vars"] = {"PYTHONPATH": path}
    # Staged, because Ray would take the whole folder, data and earlier runs included.
    staging = Path(tempfile.mkdtemp(dir=temp_dir), "user_code")
    stage(user_folder, staging)
    # Without `working_dir` Ray adds this process's working folder to the workers' path, unless a job has set one.
    if any(staging.iterdir()) or (on_cluster and not in_job):
        env["working_dir"] = str(staging)
    return env
