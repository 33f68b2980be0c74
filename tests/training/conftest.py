from pathlib import Path

import pytest
from training_cases import make_policy

from agentrl.config.schema import ModelSection


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> ModelSection:
    folder: Path = tmp_path_factory.mktemp("policy")
    return ModelSection(path=str(make_policy(folder)))
