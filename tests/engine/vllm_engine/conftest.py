"""One vLLM for all tests in this folder, for a start takes a quarter of a minute."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from agentrl.config.schema.run import ModelSection
from agentrl.types import Completion
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher
from tests.engine.engine_driver import ask_greedily
from tests.engine.vllm_engine.cases import CONTEXT, changed_policy, endless_policy, problems, rollout, weights_of

if TYPE_CHECKING:
    from agentrl.engine.vllm.engine import VllmEngine


@dataclass
class Started:
    """An engine, and what it answered before its weights were replaced for the first time."""

    engine: "VllmEngine"
    answers: list[Completion]
    """Greedy, to `problems(4)`."""


@pytest.fixture(scope="package")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights that every test begins with, as version 0."""
    return endless_policy(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture(scope="package")
def changed(base: str) -> str:
    """The weights that the engine is started on."""
    return changed_policy(base, Path(base).with_name("changed"), seed=1)


@pytest.fixture
def publisher() -> Iterator[SharedMemoryPublisher]:
    publisher = SharedMemoryPublisher()
    yield publisher
    publisher.close()


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def started(changed: str) -> AsyncIterator[Started]:
    from agentrl.engine.vllm.engine import VllmEngine

    section = rollout().model_copy(update={"stop": ["a text that nobody writes"]})  # so that it has a tokenizer
    engine = VllmEngine(ModelSection(path=changed), section, max_tokens=CONTEXT)
    await engine.start()
    yield Started(engine, [await ask_greedily(engine, prompt, 80) for prompt in problems(4)])
    await engine.aclose()


@pytest.fixture
def fresh_answers(started: Started) -> list[Completion]:
    """Return the answers to `problems(4)` of an engine that was started on `changed`."""
    return started.answers


@pytest_asyncio.fixture(loop_scope="package")
async def engine(started: Started, base: str, publisher: SharedMemoryPublisher) -> "VllmEngine":
    """The engine, idle, with the weights of `base`; started again where a test has ended it."""
    engine = started.engine
    if engine._llm is None or engine._llm.errored:
        await engine.start()
    for request_id in list(engine._open):  # what a failed test may have left
        await engine.abort(request_id)
    await engine.load_weights(publisher.publish(weights_of(base).items()), version=0)
    return engine
