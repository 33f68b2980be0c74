"""Checks, and permission to change on resume, that follow from a field."""

from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from agentrl.config.load import load_run_config
from agentrl.config.schema.fields import Section, leaves, resumable
from agentrl.config.schema.run import ActorSection, RunConfig
from agentrl.run.resume_rules import changes_of_keys
from tests.config.small_config import MINIMAL, refused


def test_all_problems_of_a_file_and_of_the_command_line_are_reported_together(config_file: Path):
    config_file.write_text(MINIMAL + "actor: {learning_rate: 2.0, warmup_stepz: 3}\n")
    assert refused(config_file, "rollout.temperature=-1").split("; ") == [
        "command line: `rollout.temperature` is -1, and must be at least 0",
        "small.yaml: `actor.learning_rate` is 2.0, and must be below 1",
        "small.yaml: unknown key `actor.warmup_stepz`. Did you mean `warmup_steps`?",
    ]


def test_numbers_from_the_environment_are_read_as_numbers(config_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TURNS", "7")
    assert load_run_config(str(config_file), ["rollout.max_turns=${oc.env:TURNS}"]).config.rollout.max_turns == 7


def test_a_section_cannot_be_changed_and_knows_its_keys():
    section = ActorSection()
    with pytest.raises(ValidationError):
        section.learning_rate = 0.5  # type: ignore[misc] - the section is frozen
    with pytest.raises(ValidationError):
        ActorSection(learning_rat=0.5)  # type: ignore[call-arg] - the key is unknown


def test_the_keys_of_a_tree_name_the_places_of_lists_and_of_names():
    names = [name for name, _ in leaves(RunConfig)]
    assert {"run.seed", "stages[].num_steps", "cluster.pools.NAME.num_gpus", "tools.code_judge.host_addr"} <= {*names}


def test_a_field_alone_says_whether_its_key_may_change_on_resume():
    class Inner(Section):
        speed: int = resumable(1)
        learnt: int = 1

    class Tree(Section):
        pools: dict[str, Inner]

    saved = yaml.safe_dump({"pools": {"a": {"speed": 1, "learnt": 1}}}).encode()
    config = Tree(pools={"a": Inner(speed=2, learnt=3)})
    assert changes_of_keys(saved, config) == {"pools.a.learnt": (1, 3)}  # type: ignore[arg-type] - a tree of this test
