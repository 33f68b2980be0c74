"""The worked example of an extra role: its edits, and the worker behind the tool on a real Ray."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from agentrl.agent_loop.trajectory_records import TrajectoryRequest
from agentrl.agent_loop.worker import AgentLoopWorker, WorkerConfig
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool
from agentrl.cluster.workers.extra_roles import spawn_extra_worker
from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.config.schema.run import ModelSection, RewardSection, RolloutSection
from agentrl.errors import ConfigError
from agentrl.judge.connection import ToolContext
from agentrl.run.preflight.extra_roles import check_extra_roles
from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.loader import load_tool_configs
from agentrl.types import Deadline, Prompt, Termination, ToolStatus, Turn
from examples.image_edit.image_worker import (
    ImageEditWorker,
    convolve,
    describe,
    from_lab,
    paint_gallery,
    to_lab,
    transfer_colours,
)
from tests.chat_templates import make_tokenizer
from tests.fakes import ScriptedEngine

FOLDER = Path(__file__).resolve().parent.parent.parent / "examples" / "image_edit"
GALLERY = paint_gallery(32)


def loaded(*overrides: str) -> LoadedConfig:
    return load_run_config(str(FOLDER / "run.yaml"), overrides)


def start_editor(rank: int) -> WorkerHandle:
    pool = ResourcePool(num_processes=1, num_cpus=0.1)
    return spawn_extra_worker(ImageEditWorker, pool, {"size": 32}, "image_edit", max_concurrency=8, rank=rank)


def test_an_image_gets_the_mean_and_deviation_of_the_other_in_lab():
    """Away from what the screen cuts off, by the definition of Reinhard et al., equations 10 and 11."""
    source, target = GALLERY["sunset"], 0.4 + 0.2 * GALLERY["sea"]
    moved = to_lab(transfer_colours(source, target))
    assert moved.mean(axis=(0, 1)) == pytest.approx(to_lab(target).mean(axis=(0, 1)), abs=0.01)
    assert moved.std(axis=(0, 1)) == pytest.approx(to_lab(target).std(axis=(0, 1)), rel=0.05, abs=0.005)


def test_the_colour_space_can_be_left_again():
    assert from_lab(to_lab(GALLERY["sea"])) == pytest.approx(GALLERY["sea"], abs=1e-3)


def test_a_convolution_is_the_sum_over_the_neighbours():
    image, kernel = GALLERY["sea"], np.arange(9.0).reshape(3, 3) / 40
    filtered = convolve(image, kernel)
    by_hand = sum(kernel[i, j] * image[9 + i, 6 + j] for i in range(3) for j in range(3))
    assert filtered[10, 7] == pytest.approx(np.clip(by_hand, 0, 1))


@pytest.mark.ray
async def test_workers_of_the_extra_role_answer_the_tool_of_the_policy(local_ray: Path):
    configs = load_tool_configs(loaded().config)
    workers = [start_editor(rank) for rank in range(2)]
    [tool] = build_tools(configs, ToolContext(workers={"image_edit": tuple(workers)})).values()
    await tool.start()
    mine, other = Episode(episode_id="e1", prompt_id="p"), Episode(episode_id="e2", prompt_id="p")

    async def call(episode: Episode, **arguments: Any) -> tuple[ToolStatus, str]:
        result = await tool.call(episode, arguments, deadline=Deadline.after(60))
        return result.status, result.text

    status, text = await call(mine, operation="transfer_colours", image="sunset", colours_of="sea")
    assert status is ToolStatus.OK
    expected = transfer_colours(GALLERY["sunset"], GALLERY["sea"]).mean(axis=(0, 1))
    assert orjson.loads(text)["mean_rgb"] == pytest.approx(expected.tolist(), abs=1e-3)
    assert orjson.loads((await call(mine, operation="blur", image="image_1"))[1])["image"] == "image_2"
    assert await call(other, operation="blur", image="image_1") == (
        ToolStatus.ERROR,
        "failure: ValueError: there is no image `image_1`; there are sunset, sea, forest, snow",
    )
    await tool.end_episode(mine)
    await tool.end_episode(other)
    assert [await worker.num_kept() for worker in workers] == [0, 0]


class AnyAnswer:
    """A reward that needs nothing."""

    def __init__(self, config: dict[str, Any]) -> None: ...

    async def start(self) -> None: ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        return 1.0

    async def aclose(self) -> None: ...


@pytest.mark.ray
async def test_the_agent_loop_has_the_worker_edit_what_the_policy_asks_for_and_reads_the_results(
    local_ray: Path, tmp_path: Path
):
    tokenizer = make_tokenizer("qwen2_5")
    tokenizer.save_pretrained(tmp_path)
    editor = start_editor(0)
    plan = loaded().config
    config = WorkerConfig(
        model=ModelSection(path=str(tmp_path)),
        rollout=RolloutSection(max_response_tokens=2000),
        reward=RewardSection(class_name=f"{__name__}.AnyAnswer"),
        tools=tuple(load_tool_configs(plan)),
        context=ToolContext(workers={"image_edit": (editor,)}),
        run_seed=0,
        run_dir=str(tmp_path),
    )
    blur = '<tool_call>{{"name": "edit_image", "arguments": {{"operation": "blur", "image": "{}"}}}}</tool_call>'
    replies = [f"{text}<|im_end|>" for text in (blur.format("sunset"), blur.format("image_1"), "It is 5.")]
    script = [tokenizer.encode(reply, add_special_tokens=False) for reply in replies]
    prompt = Prompt(prompt_id="p0", messages=[{"role": "user", "content": "Blur the sunset twice."}], answer="5")
    worker = AgentLoopWorker(config, "agent_loop")
    _, trajectory = await worker.run(TrajectoryRequest(step=1, prompt=prompt, sample_index=0), ScriptedEngine(script))
    await worker.aclose()

    after_prompt = slice(trajectory.num_prompt_tokens, None)
    response = zip(trajectory.token_ids[after_prompt], trajectory.response_mask[after_prompt], strict=True)
    observed = tokenizer.decode([token for token, sampled in response if not sampled])
    once = convolve(GALLERY["sunset"], np.full((3, 3), 1 / 9))
    twice = convolve(once, np.full((3, 3), 1 / 9))
    for name, image in (("image_1", once), ("image_2", twice)):
        assert orjson.dumps({"image": name, **describe(image)}).decode() in observed
    assert (trajectory.termination, trajectory.reward) == (Termination.ANSWERED, 1.0)
    assert await editor.num_kept() == 0, "the loop has told it that the episode is over"


def refused(monkeypatch: pytest.MonkeyPatch, *overrides: str, tools: Sequence[ToolConfig] | None = None) -> str:
    monkeypatch.syspath_prepend(str(FOLDER))
    plan = loaded(*overrides)
    with pytest.raises(ConfigError) as error:
        check_extra_roles(plan.config.cluster, load_tool_configs(plan.config) if tools is None else tools)
    return str(error.value)


def test_the_example_passes_the_look_before_the_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    check_extra_roles(loaded().config.cluster, load_tool_configs(loaded().config))
    assert importlib.import_module("image_worker")


@pytest.mark.parametrize(
    ("class_path", "words"),
    [
        ("image_worker.NoSuchWorker", "has no `NoSuchWorker`"),
        ("image_worker.paint_gallery", "is not a class"),
        ("agentrl.cluster.workers.model_worker.ModelWorker", "has no `async def edit`"),
    ],
)
def test_a_class_that_cannot_serve_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, class_path: str, words: str
):
    assert words in refused(monkeypatch, f"cluster.extra_roles.image_edit.class_path={class_path}")


def test_a_tool_that_asks_for_a_role_that_nobody_plays_is_refused(monkeypatch: pytest.MonkeyPatch):
    [tool] = load_tool_configs(loaded().config)
    other = ToolConfig(
        class_name=tool.class_name, config={**tool.config, "role": "painter"}, tool_schema=tool.tool_schema
    )
    assert "its `role` is `painter`, which is none of `cluster.extra_roles` (`image_edit`)" in refused(
        monkeypatch, tools=[other]
    )
