"""Keys of the section `observability`: the trackers that a run reports to."""

from typing import Annotated, Literal

from pydantic import Field

from agentrl.config.schema.fields import Section, resumable

SinkName = Literal["tensorboard", "wandb", "mlflow", "trackio", "swanlab"]


class ObservabilitySection(Section):
    """Trackers that get each step's metrics besides `metrics.jsonl` ([sinks](sinks.md)); keys and addresses of their servers
    come from the environment.
    """

    sinks: list[SinkName] = resumable(["tensorboard"])
    """Trackers, each of which needs its package: `pip install "agentrl[wandb]"`, and so on."""
    mode: Literal["online", "offline"] = resumable("online")
    """`online` sends to the tracker's server; `offline` writes files into `run.dir` (trackio: also a local database)."""
    project_name: Annotated[str, Field(min_length=1)] = resumable("agentrl")
    """Project of the run; in MLflow the experiment."""
    experiment_name: str | None = resumable(None)
    """Name of the run; absent: that of its folder."""
    entity: str | None = resumable(None)
    """Owner of the project: the entity in W&B, the workspace in SwanLab (only these)."""
    group: str | None = resumable(None)
    """Group of the run; in MLflow a tag."""
    tags: list[str] = resumable([])
    """Tags of the run (not trackio)."""
    dashboard_port: Annotated[int, Field(ge=0, le=65535)] | None = resumable(None)
    """Port of a [dashboard](dashboard.md) of this run while it runs; 0 takes a free one, which the log names. Absent: none."""
    dashboard_host: str = resumable("127.0.0.1")
    """Address that it listens on; not a loopback address: with a token, which is part of the logged address."""
    prometheus_port: Annotated[int, Field(ge=0, le=65535)] | None = resumable(None)
    """Port of an HTTP server for Prometheus with the latest metrics; 0 takes a free one, which the log names. Absent: none."""
    prometheus_host: str = resumable("127.0.0.1")
    """Address that this server listens on; it asks for no token."""
