"""The worked example of an extra role, run as its README says: the policy learns to have its images edited."""

from pathlib import Path

import pytest

from tests.runners.run_process import finish_run, metrics

pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(700)]


def test_the_example_learns_with_workers_of_its_own_behind_the_tool(tmp_path: Path):
    finish_run(tmp_path / "run", config="examples/image_edit/run.yaml", timeout_s=600)
    rows = metrics(tmp_path / "run")
    accuracy, success = (
        [value for row in rows if (value := row.get(f"validation/{key}")) is not None]
        for key in ("accuracy", "tool_success_rate")
    )
    assert accuracy[-1] >= accuracy[0] + 0.2
    assert min(success) > 0.8
    assert " pool editors: " in (tmp_path / "run" / "run.log").read_text()
