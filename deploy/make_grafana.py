"""Writes `deploy/grafana.json`, the dashboard of runs that serve their metrics: `python deploy/make_grafana.py`.

`tests/test_deploy.py` fails when the file is not what this script writes, `tests/runners/test_rstar2.py` when a panel names a
metric that a run does not have.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.observability.sinks.prometheus import exported_name

FILE = Path(__file__).resolve().parent / "grafana.json"
_WIDTH, _HEIGHT, _IN_A_ROW = 8, 8, 3
_SOURCE = {"type": "prometheus", "uid": "${source}"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A picture of some metrics over time.

    Example: `Panel(title="Reward", unit="short", metrics=("rollout/reward_mean",))`.
    """

    title: str
    unit: str
    """Unit in Grafana's words."""
    metrics: tuple[str, ...]
    """Names in metrics.jsonl."""


PANELS = (
    Panel(title="Accuracy", unit="percentunit", metrics=("validation/accuracy", "rollout/solved_rate")),
    Panel(title="Reward", unit="short", metrics=("rollout/reward_mean", "validation/reward_mean")),
    Panel(title="Step", unit="short", metrics=("step",)),
    Panel(title="Tools", unit="percentunit", metrics=("rollout/tool_call_share", "rollout/tool_success_rate")),
    Panel(
        title="Cut short",
        unit="percentunit",
        metrics=("rollout/truncated_share", "rollout/max_turns_share", "rollout/timeout_share"),
    ),
    Panel(
        title="Sampled tokens of a trajectory",
        unit="short",
        metrics=("rollout/response_tokens_mean", "rollout/response_tokens_max"),
    ),
    Panel(title="Entropy", unit="short", metrics=("actor/entropy",)),
    Panel(title="Gradient norm", unit="short", metrics=("actor/grad_norm",)),
    Panel(title="Actor and engine", unit="short", metrics=("actor/rollout_kl", "actor/rollout_logprob_diff_mean")),
    Panel(
        title="Groups",
        unit="short",
        metrics=("rollout/groups_kept", "rollout/groups_dropped_all_solved", "rollout/groups_dropped_none_solved"),
    ),
    Panel(
        title="Time of a step",
        unit="s",
        metrics=("time/step_s", "time/rollout_s", "time/update_s", "time/weight_sync_s"),
    ),
    Panel(title="Tokens trained per second", unit="short", metrics=("actor/tokens_per_s",)),
    Panel(title="Judge's queue", unit="s", metrics=("judge/queue_wait_s_mean", "judge/queue_wait_s_p95")),
    Panel(
        title="Failures",
        unit="short",
        metrics=("rollout/infra_errors", "rollout/data_errors", "rollout/retries", "judge/retries"),
    ),
    Panel(title="Deaths survived", unit="short", metrics=("actor/restarts", "rollout/engine_deaths")),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "title": "agentrl",
        "uid": "agentrl",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "instance",
                    "label": "Run",
                    "type": "query",
                    "datasource": _SOURCE,
                    "query": f"label_values({exported_name('step')}, instance)",
                    "refresh": 2,
                    "multi": True,
                    "includeAll": True,
                },
            ]
        },
        "panels": [_panel(index, panel) for index, panel in enumerate(PANELS)],
    }


def _panel(index: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(index, _IN_A_ROW)
    return {
        "id": index + 1,
        "title": panel.title,
        "type": "timeseries",
        "datasource": _SOURCE,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": f'{exported_name(metric)}{{instance=~"$instance"}}',
                "legendFormat": f"{metric} {{{{instance}}}}",
            }
            for number, metric in enumerate(panel.metrics)
        ],
    }


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
