"""MLflow: the server in `MLFLOW_TRACKING_URI`; offline the database `mlflow.db` in the run's folder."""

import re
import time
from collections.abc import Mapping

from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]
from mlflow.entities import Metric, Param  # pyright: ignore[reportMissingImports]

from agentrl.config.plain import flatten
from agentrl.observability.sinks.base import TrackedRun

_RUN_ID = "agentrl.run_id"
"""Tag by which a run is found again: MLflow gives ids of its own."""
_ODD = re.compile(r"[^\w\-./: ]")
"""Characters that MLflow takes in no name."""
_MAX_PARAMS, _MAX_METRICS, _MAX_CHARACTERS = 100, 1000, 6000
"""MLflow's limits of one request, and of a parameter's value."""


class MlflowSink:
    """A run of an MLflow experiment."""

    def __init__(self, run: TrackedRun) -> None:
        offline = f"sqlite:///{(run.folder / 'mlflow.db').resolve()}"
        self._client = MlflowClient(tracking_uri=None if run.is_online else offline)
        experiment = self._experiment(run.section.project_name)
        known = self._client.search_runs([experiment], filter_string=f"tags.`{_RUN_ID}` = '{run.run_id}'")
        self._id = known[0].info.run_id if known else self._create(run, experiment)
        self._client.update_run(self._id, status="RUNNING")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send a step; MLflow keeps the values of a repeated step beside the earlier ones."""
        now_ms = int(time.time() * 1000)
        rows = [Metric(_ODD.sub("_", name), value, now_ms, step) for name, value in metrics.items()]
        for start in range(0, len(rows), _MAX_METRICS):
            self._client.log_batch(self._id, metrics=rows[start : start + _MAX_METRICS])

    def close(self) -> None:
        """Mark the run as finished; a resumed one is marked again."""
        self._client.set_terminated(self._id)

    def _experiment(self, name: str) -> str:
        experiment = self._client.get_experiment_by_name(name)
        if experiment is not None:
            return experiment.experiment_id
        return self._client.create_experiment(name)

    def _create(self, run: TrackedRun, experiment: str) -> str:
        tags = dict.fromkeys(run.section.tags, "true") | {_RUN_ID: run.run_id}
        if run.section.group is not None:
            tags["group"] = run.section.group
        run_id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        flat = flatten(run.config)
        params = [Param(_ODD.sub("_", key), str(value)[:_MAX_CHARACTERS]) for key, value in flat.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(run_id, params=params[start : start + _MAX_PARAMS])
        return run_id
