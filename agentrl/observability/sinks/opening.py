"""The sinks of a run: their check before the start, and the threads that serve them."""

import importlib
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.errors import ConfigError
from agentrl.observability.sinks.base import Sink, TrackedRun, run_id_of
from agentrl.observability.sinks.prometheus import check_port, serve_metrics
from agentrl.observability.sinks.sink_thread import SinkThread

CLOSE_S = 10.0
"""Wall clock for all sinks together to send what is left at the end of a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    class_name: str
    """Class in `wandb_sink.py` and so on."""
    variables: tuple[str, ...] = ()
    """Environment variables of which one must be set to send to the tracker's server."""


_KINDS = {
    "tensorboard": _Kind(class_name="TensorBoardSink"),
    "wandb": _Kind(class_name="WandbSink", variables=("WANDB_API_KEY",)),
    "mlflow": _Kind(class_name="MlflowSink", variables=("MLFLOW_TRACKING_URI",)),
    "trackio": _Kind(class_name="TrackioSink", variables=("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")),
    "swanlab": _Kind(class_name="SwanlabSink", variables=("SWANLAB_API_KEY",)),
}


def check_sinks(section: ObservabilitySection) -> None:
    """Check that every sink is installed and knows its server, without importing its package.

    Raises:
        ConfigError: the package or the environment variable that is missing, or the port for Prometheus that is taken.
    """
    for name in section.sinks:
        kind = _KINDS[name]
        if find_spec(name) is None:
            raise ConfigError(
                f'observability.sinks: the package of `{name}` is not installed. Run `pip install "agentrl[{name}]"`.'
            )
        if section.mode == "online" and kind.variables and not any(os.environ.get(key) for key in kind.variables):
            raise ConfigError(
                f"observability.sinks: `{name}` needs {' or '.join(kind.variables)} in the environment. Set it, or "
                "`observability.mode: offline`."
            )
    check_port(section)


def _open_sink(name: str, run: TrackedRun) -> Sink:
    module = importlib.import_module(f"agentrl.observability.sinks.{name}_sink")
    return getattr(module, _KINDS[name].class_name)(run)


class Sinks:
    """All sinks of a run; no call waits for a tracker, except `close` for at most `CLOSE_S`."""

    def __init__(self, folder: Path, section: ObservabilitySection, config: Mapping[str, Any]) -> None:
        """Start the endpoint for Prometheus; sinks start with the first row, so that trackers get no empty runs."""
        run = TrackedRun(folder=folder, run_id=run_id_of(folder), section=section, config=config)
        names = dict.fromkeys(section.sinks)
        self._threads = {name: SinkThread(name, partial(_open_sink, name, run)) for name in names}
        self._endpoint = serve_metrics(section)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand the finite metrics of `step` to every sink."""
        finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
        for thread in self._threads.values():
            thread.put(step, finite)
        if self._endpoint is not None:
            self._endpoint.log(step, finite)

    def metrics(self) -> dict[str, float]:
        """Return the number of rows that each sink has lost, for those that have lost any."""
        lost = {name: thread.num_lost for name, thread in self._threads.items()}
        return {f"sinks/{name}_rows_lost": float(count) for name, count in lost.items() if count}

    def close(self, *, within_s: float = CLOSE_S) -> None:
        """Send what is left, as far as that is possible in `within_s`, for all sinks together."""
        due_at = time.monotonic() + within_s
        for thread in self._threads.values():
            thread.end()
        for thread in self._threads.values():
            thread.join(max(0.0, due_at - time.monotonic()))
        if self._endpoint is not None:
            self._endpoint.close()
