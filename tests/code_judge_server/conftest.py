from collections.abc import Iterator

import pytest
from judge_process import JudgeProcess, running_judge


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    """One judge with two slots and short limits, for every test that does not harm it."""
    limits = ["--max-cpu-time-s", "2", "--max-wall-time-s", "4", "--max-memory-mb", "256", "--max-queue-time-s", "60"]
    with running_judge(tmp_path_factory.mktemp("judge"), "--num-slots", "2", *limits) as server:
        yield server
