from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.training.training_cases import make_policy

if TYPE_CHECKING:
    from agentrl.config.schema.run import ModelSection


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> "ModelSection":
    # Imported late, because the GPU tests of this folder run without OmegaConf.
    from agentrl.config.schema.run import ModelSection

    folder: Path = tmp_path_factory.mktemp("policy")
    return ModelSection(path=str(make_policy(folder)))
