"""Reference log-probabilities under LoRA: the learner asks the actor for those of its base model."""

import random
from collections.abc import Sequence
from typing import Any, cast

from agentrl.cluster.learner import Learner
from agentrl.cluster.workers.worker_group import WorkerGroup
from agentrl.config.schema.algorithm import AlgorithmSection, LoraSection
from agentrl.config.schema.run import ActorSection, ModelSection, RunConfig
from tests.training.training_cases import make_group

MODEL = ModelSection(path="")


class ScriptedActor:
    """A group of one rank that writes down what it is asked."""

    name = "actor"
    num_shares = 1

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    async def first(self, *call: Any) -> float:
        return 0.1

    async def split(self, *call: str, items: Sequence[Any], shares: Sequence[Any]) -> list[str]:
        self.asked.append(call)
        return ["said"] * len(items)

    async def each_share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[dict[str, float]]:
        [(component, _, names, *_)] = arguments
        self.asked.append((method, component, *names))
        return [{}]


async def test_the_actor_says_what_its_base_model_would():
    actor = ScriptedActor()
    config = RunConfig(
        model=MODEL,
        actor=ActorSection(lora=LoraSection(rank=4)),
        algorithm=AlgorithmSection(kl_coefficient=0.1),
    )
    learner = Learner(config, lambda: [cast(WorkerGroup, actor)])
    await learner.update([make_group(random.Random(0), "p", 4)], step=1)
    assert actor.asked == [("score", "actor", "reference_logprobs"), ("update", "actor", "ref_logprobs")]
