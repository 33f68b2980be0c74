"""The stages of a run: what each changes, and what is refused."""

import json
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.writer import PASS_RATES
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.data.pass_rates import PassRates
from agentrl.errors import CheckpointError, ConfigError
from agentrl.run.plan import Plan, Run, prepare
from agentrl.run.stage_plans import plan_stage, stages_left
from agentrl.run.stages import stages_of
from agentrl.run.training_step import restore
from tests.summaries import SELECTION, short_summary

THREE = (
    "stages=[{num_steps: 30}, {num_steps: 8, max_response_tokens: 150, max_turns: 2, update_reference: true},"
    " {num_steps: 12, max_turns: 4, max_pass_rate: 0.9, reset_optimiser: true}]"
)


def config(*overrides: str) -> RunConfig:
    return load_run_config("configs/demo.yaml", [sum_of(*overrides), *overrides]).config


def sum_of(*overrides: str) -> str:
    """Return the override that takes the place of the demo's own number of steps."""
    return f"run.num_steps={sum(map(int, re.findall(r'num_steps: ([0-9]+)', ' '.join(overrides))))}"


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    overrides = [sum_of(THREE), "algorithm.kl_coefficient=0.01", f"run.dir={tmp_path / 'run'}", THREE]
    return prepare(load_run_config("configs/demo.yaml", overrides))


def test_a_run_without_stages_is_one_stage():
    [stage] = stages_of(config("run.num_steps=7"))
    assert (stage.start, stage.end, stage.reference_step) == (0, 7, 0)
    assert not stage.begins_with(0)


def test_each_stage_has_its_own_lengths_and_ends_where_the_next_begins():
    base = config(THREE, "algorithm.kl_coefficient=0.01")
    stages = stages_of(base)
    assert base.run.num_steps == 50
    assert [(stage.start, stage.end) for stage in stages] == [(0, 30), (30, 38), (38, 50)]
    assert [stage.config.rollout.max_turns for stage in stages] == [base.rollout.max_turns, 2, 4]
    lengths = [stage.config.rollout.max_response_tokens for stage in stages]
    assert lengths == [base.rollout.max_response_tokens, 150, base.rollout.max_response_tokens]
    assert [stage.reference_step for stage in stages] == [0, 30, 30], "a reference stays until the next"
    assert [stage.has_own_data for stage in stages] == [False, False, True]
    assert stages[2].begins_with(38)
    assert not stages[2].begins_with(39)


@pytest.mark.parametrize(
    ("second", "third", "own_data"),
    [
        ("train_files: [b.jsonl]", "max_turns: 2", [False, True, True]),
        ("train_files: [b.jsonl]", "train_files: [b.jsonl]", [False, True, False]),
        ("train_files: [examples/arithmetic/train.jsonl]", "max_turns: 2", [False, False, False]),
        ("max_pass_rate: 0.5", "max_turns: 2", [False, True, True]),
        ("max_pass_rate: 0.5", "max_pass_rate: 0.5", [False, True, True]),
    ],
)
def test_a_stage_has_its_own_data_where_its_prompts_are_others_than_those_before(
    second: str, third: str, own_data: list[bool]
):
    stages = stages_of(config(f"stages=[{{num_steps: 3}}, {{num_steps: 3, {second}}}, {{num_steps: 3, {third}}}]"))
    assert [stage.has_own_data for stage in stages] == own_data


def test_the_prompts_of_later_stages_are_checked_before_the_first_begins(plan: Plan, tmp_path: Path):
    other = tmp_path / "other.jsonl"
    other.write_text(Path("examples/arithmetic/validation.jsonl").read_text())
    stages = f"stages=[{{num_steps: 3}}, {{num_steps: 3, train_files: [{other}]}}]"
    overrides = [sum_of(stages), f"run.dir={tmp_path / 'second'}", stages]
    staged = prepare(load_run_config("configs/demo.yaml", overrides))
    later, now = staged.prompts_to_check()
    assert {prompt.prompt_id.rpartition("-")[0] for prompt in later} == {"other"}
    assert len(now) == len(staged.prompts) + len(staged.validation_prompts)
    [left] = plan_stage(staged, staged.stages[1]).prompts_to_check()
    assert len(left) == len(later) + len(staged.validation_prompts)


def checkpoint(plan: Plan, step: int, pass_rates: PassRates) -> None:
    plan.directory.checkpoints.begin(step)
    plan.directory.checkpoints.put(step, PASS_RATES, pass_rates.encode())
    plan.directory.checkpoints.commit(RunState(step=step, prompts_taken=12 * step))


def test_a_run_resumes_in_the_stage_of_its_newest_checkpoint(plan: Plan):
    left = [[stage.index for stage in stages_left(plan)]]
    for step in (29, 30, 37, 38, 50):
        checkpoint(plan, step, PassRates())
        left.append([stage.index for stage in stages_left(plan)])
    assert left == [[0, 1, 2], [0, 1, 2], [1, 2], [1, 2], [2], [2]]
    plan.directory.finish({})
    assert stages_left(plan) == []


def test_a_stage_leaves_out_what_was_solved_before_it_and_keeps_to_that_when_it_is_resumed(plan: Plan):
    solved, other = (prompt.prompt_id for prompt in plan.prompts.all()[:2])
    checkpoint(plan, 30, PassRates())  # the reference
    checkpoint(plan, 38, PassRates({solved: 1.0, other: 0.5}))
    begun = plan_stage(plan, plan.stages[2])
    assert begun.pass_rates.left_out == {solved}
    assert len(begun.prompts) == len(plan.prompts) - 1
    begun.pass_rates.record([], SELECTION)
    later = PassRates({solved: 0.0, other: 1.0}, left_out=begun.pass_rates.left_out)
    checkpoint(plan, 40, later)
    resumed = plan_stage(plan, plan.stages[2])
    assert resumed.pass_rates.left_out == {solved}
    assert [p.prompt_id for p in resumed.prompts.all()] == [p.prompt_id for p in begun.prompts.all()]


def test_a_reference_that_is_gone_is_reported_before_the_stage_starts(plan: Plan):
    stage = next(stage for stage in plan.stages if stage.reference_step > 0)
    for step in (stage.reference_step, stage.reference_step + 1):
        checkpoint(plan, step, PassRates())
        assert plan_stage(plan, stage).stage is stage
    (Path(plan.directory.checkpoints.url_of(stage.reference_step)) / "state.json").unlink()
    with pytest.raises(
        CheckpointError, match=rf"step_0000{stage.reference_step} is not there, and holds the reference.*Put"
    ):
        plan_stage(plan, stage)


class Models:
    """Notes what is asked of the actor and its reference."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | int]] = []

    async def load(self, url: str) -> None:
        self.asked.append(("load", url))

    async def load_reference(self, url: str) -> None:
        self.asked.append(("reference", url))

    async def reset_optimiser(self, *, step: int) -> None:
        self.asked.append(("reset", step))


def run_of(plan: Plan, models: Models) -> Run:
    metrics = SimpleNamespace(take_back=lambda after_step: None, last_step=10_000)
    progress = SimpleNamespace(resume=lambda num_steps_done: None)
    return cast(Run, cast(Any, SimpleNamespace(plan=plan, learner=models, metrics=metrics, progress=progress)))


@pytest.mark.parametrize("step", [30, 31, 37])
async def test_the_reference_of_a_stage_is_loaded_wherever_in_the_stage_the_run_goes_on(plan: Plan, step: int):
    for saved in sorted({30, step}):
        checkpoint(plan, saved, PassRates())
    models = Models()
    await restore(run_of(plan_stage(plan, plan.stages[1]), models))
    url_of = plan.directory.checkpoints.url_of
    assert models.asked == [("load", url_of(step)), ("reference", url_of(30))]


async def test_the_optimiser_is_reset_and_the_epoch_begins_once_in_a_stage(plan: Plan):
    for step in (30, 38):
        checkpoint(plan, step, PassRates())
    begun, models = plan_stage(plan, plan.stages[2]), Models()
    await restore(run_of(begun, models))
    assert ("reset", 38) in models.asked
    assert begun.prompts.position == len(begun.prompts) * math.ceil(12 * 38 / len(begun.prompts)) != 12 * 38
    checkpoint(plan, 39, PassRates())
    resumed, models = plan_stage(plan, plan.stages[2]), Models()
    await restore(run_of(resumed, models))
    assert [kind for kind, _ in models.asked] == ["load", "reference"]
    assert resumed.prompts.position == 12 * 39


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


async def test_what_was_counted_after_the_checkpoint_is_forgotten_when_models_have_died(plan: Plan):
    known, other = (prompt.prompt_id for prompt in plan.prompts.all()[:2])
    saved = PassRates({known: 0.5}, left_out=["an older prompt"])
    for step in (30, 38, 39):
        checkpoint(plan, step, saved)
    run = run_of(plan_stage(plan, plan.stages[2]), Models())
    run.plan.pass_rates.record([short_summary(known, reward=1.0), short_summary(other, reward=1.0)], SELECTION)
    assert run.plan.pass_rates.encode() != saved.encode()
    await restore(run)
    assert run.plan.pass_rates.encode() == saved.encode()


def staged_plan(tmp_path: Path, *stages: str) -> Plan:
    """Return the plan of a run whose stages are one step each."""
    word = f"stages=[{', '.join(f'{{num_steps: 1, {stage}}}' for stage in stages)}]"
    return prepare(load_run_config("configs/demo.yaml", [sum_of(word), f"run.dir={tmp_path / 'run'}", word]))


def without_ids(file: Path, count: int) -> Path:
    file.parent.mkdir(exist_ok=True)
    file.write_text("\n".join(json.dumps({"prompt": "Compute.", "answer": "1"}) for _ in range(count)))
    return file


async def test_prompts_of_another_file_of_the_same_name_are_others_and_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    a, b = (without_ids(tmp_path / folder / "train.jsonl", 8) for folder in "ab")
    plan = staged_plan(tmp_path, f"train_files: [{a}]", f"train_files: [{b}], max_pass_rate: 0.0")
    checkpoint(plan, 1, PassRates({prompt.prompt_id: 1.0 for prompt in plan.prompts.all()}))
    run = run_of(plan_stage(plan, plan.stages[1]), Models())
    with caplog.at_level("INFO"):
        await restore(run)
    assert "stage 2 of 2: 1 steps, 8 prompts (0 left out)" in caplog.text, "those of another stage are not counted"
    assert {prompt.prompt_id for prompt in run.plan.prompts.all()} == {f"b-train-{row}" for row in range(1, 9)}


async def test_prompts_of_a_file_are_the_same_ones_whatever_files_a_stage_has_beside_it(tmp_path: Path):
    a, b = (without_ids(tmp_path / folder / "train.jsonl", 8) for folder in "ab")
    plan = staged_plan(tmp_path, f"train_files: [{a}, {b}]", f"train_files: [{a}], max_pass_rate: 0.0")
    solved = [prompt.prompt_id for prompt in plan.prompts.all()][1:]  # all but the first of `a`
    checkpoint(plan, 1, PassRates(dict.fromkeys(solved, 1.0)))
    prompts = plan_stage(plan, plan.stages[1]).prompts
    assert [prompt.prompt_id for prompt in prompts.all()] == ["train-1"]
    assert prompts.num_left_out == 7


def test_a_run_whose_next_stage_leaves_out_every_prompt_resumes_with_both_ways_out(tmp_path: Path):
    first = f"train_files: [{without_ids(tmp_path / 'four' / 'train.jsonl', 4)}]"
    plan = staged_plan(tmp_path, first, f"{first}, max_pass_rate: 0.0")
    checkpoint(plan, 1, PassRates({prompt.prompt_id: 0.5 for prompt in plan.prompts.all()}))
    with pytest.raises(ConfigError, match=r"none of the 4 prompts of .* remove the stage from `stages`: the run"):
        plan_stage(plan, plan.stages[1])
    plan.directory.close()
    raised = staged_plan(tmp_path, first, f"{first}, max_pass_rate: 0.5")
    assert len(plan_stage(raised, *stages_left(raised)).prompts) == 4
    raised.directory.close()
    without = staged_plan(tmp_path, first)
    assert [stage.end for stage in stages_left(without)] == [1], "what is left is its end"


def rows(file: Path, count: int) -> Path:
    lines = ({"id": f"p{number}", "prompt": "Compute.", "answer": "1"} for number in range(count))
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


@pytest.mark.parametrize("sizes", [(10, 100, 40), (100, 10, 40), (35, 35, 7)])
async def test_no_prompt_id_comes_twice_whatever_the_sizes_of_the_data_and_what_is_left_out(
    tmp_path: Path, sizes: tuple[int, int, int]
):
    """The data of each stage are a part of those of another; 35 prompts of each are taken."""
    files = [rows(tmp_path / f"{number}.jsonl", size) for number, size in enumerate(sizes)]
    changes = [f"train_files: [{file}]" for file in files] + [f"train_files: [{files[-1]}], max_pass_rate: 0.9"]
    stages = f"stages=[{', '.join(f'{{num_steps: 1, {change}}}' for change in [*changes, changes[0]])}]"
    plan = prepare(load_run_config("configs/demo.yaml", [sum_of(stages), f"run.dir={tmp_path / 'run'}", stages]))
    given: list[str] = []
    position, rates = 0, PassRates()
    for number in range(len(plan.stages)):
        if number > 0:
            plan.directory.checkpoints.begin(number)
            plan.directory.checkpoints.put(number, PASS_RATES, rates.encode())
            plan.directory.checkpoints.commit(RunState(step=number, prompts_taken=position))
            # A first start of the stage, which is killed.
            await restore(run_of(plan_stage(plan, plan.stages[number]), Models()))
        run = run_of(plan_stage(plan, plan.stages[number]), Models())
        await restore(run)
        given += [prompt.prompt_id for prompt in run.plan.prompts.take(35)]
        position = run.plan.prompts.position
        rates = PassRates({"p0": 1.0, "p1": 1.0, "p2": 0.5}, left_out=run.plan.pass_rates.left_out)
    assert len(set(given)) == len(given) == 35 * len(plan.stages)


async def test_a_stage_keeps_where_it_began_in_the_data(plan: Plan):
    checkpoint(plan, 30, PassRates())
    began = await restore(run_of(plan_stage(plan, plan.stages[1]), Models()))
    assert (began.prompts_taken, began.stage_position) == (360, 360), "the same data go on"
    checkpoint(plan, 38, PassRates())
    began = await restore(run_of(plan_stage(plan, plan.stages[2]), Models()))
    assert (began.prompts_taken, began.stage_position) == (456, len(plan.prompts)), "other data begin with an epoch"
    plan.directory.checkpoints.begin(40)
    plan.directory.checkpoints.put(40, PASS_RATES, PassRates().encode())
    plan.directory.checkpoints.commit(replace(began, step=40, prompts_taken=began.stage_position + 30))
    assert (await restore(run_of(plan_stage(plan, plan.stages[2]), Models()))).stage_position == began.stage_position


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ("[{num_steps: 0}]", r"`stages\[0\].num_steps` is 0"),
        ("[{num_steps: 1, max_turns: 0}]", r"`stages\[0\].max_turns` is 0"),
        ("[{num_steps: 1}, {num_steps: 1, max_pass_rate: 1.0}]", r"`stages\[1\].max_pass_rate` is 1.0"),
        ("[{num_steps: 1}, {num_steps: 1, train_files: []}]", r"`stages\[1\].train_files` is empty"),
        ("[{num_steps: 1}, {num_steps: 1, update_reference: true}]", r"`algorithm.kl_coefficient` is 0"),
        ("[{num_steps: 1, reset_optimiser: true}]", r"`stages\[0\].reset_optimiser` is set, but before the first"),
        ("[{num_steps: 1, max_pass_rate: 0.5}]", r"`stages\[0\].max_pass_rate` is set, but before the first"),
        ("[3]", r"`stages\[0\]` is 3, and must be a mapping"),
        ("[{num_steps: 1, train_files: a.jsonl}]", r"`stages\[0\].train_files` is 'a.jsonl', and must be a list"),
        ("[{max_turns: 1}]", r"`stages\[0\].num_steps` is missing"),
        ("[{num_stepz: 1}]", "num_steps"),
    ],
)
def test_stages_that_cannot_be_are_refused_with_their_key(stages: str, named: str):
    with pytest.raises(ConfigError, match=named):
        config(f"stages={stages}")


def test_steps_that_contradict_the_stages_are_refused():
    with pytest.raises(ConfigError, match=r"`run.num_steps` is 60, but the sum over `stages` is 50"):
        config("run.num_steps=60", THREE, "algorithm.kl_coefficient=0.01")


@pytest.mark.usefixtures("vllm_is_installed")
def test_the_recipe_of_rstar2_has_its_three_stages():
    stages = stages_of(load_run_config("configs/rstar2_qwen3_14b.yaml").config)
    assert [stage.end for stage in stages] == [300, 385, 510]
    rollouts = [stage.config.rollout for stage in stages]
    assert [(rollout.max_response_tokens, rollout.max_turns) for rollout in rollouts] == [
        (8192, 10),
        (12288, 10),
        (12288, 15),
    ]
    assert (stages[2].reset_optimiser, stages[2].max_pass_rate) == (True, 0.999)


@pytest.mark.parametrize(
    ("stages", "named"),
    [
        ("[{num_steps: 0}]", r"`stages\[0\]\.num_steps` is 0"),
        ("[{num_steps: 5}, {num_steps: -1}]", r"`stages\[1\]\.num_steps` is -1"),
    ],
)
def test_a_stage_without_steps_is_named_where_the_steps_of_the_run_are_too(stages: str, named: str):
    with pytest.raises(ConfigError, match=named):
        load_run_config("configs/demo.yaml", ["run.num_steps=9", f"stages={stages}"])
