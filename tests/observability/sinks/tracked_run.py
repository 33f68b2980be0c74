"""A run that is killed after four steps, and resumed from its checkpoint of step 2: `tracked_run.py SINK FOLDER`."""

import sys
from pathlib import Path

from agentrl.config.schema.observability import ObservabilitySection
from agentrl.observability.sinks.opening import Sinks

sink, folder = sys.argv[1], Path(sys.argv[2])
section = ObservabilitySection.model_validate(
    {"sinks": [sink], "mode": "offline", "project_name": "tested", "group": "a group", "tags": ["a tag"]}
)
for steps, value in (((0, 1, 2, 3), 0.0), ((3, 4), 100.0)):
    sinks = Sinks(folder, section, {"run": {"seed": 7, "dir": None}})
    for step in steps:
        sinks.log(step, {"rollout/value": step + value, "reward/odd name @1": 1.0, "a/absent": float("nan")})
    sinks.close(within_s=200)
    assert sinks.metrics() == {}
