from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError

DEMO = str(Path(__file__).resolve().parents[2] / "configs" / "demo.yaml")
SINGLE = [
    "rollout.samples_per_prompt=1",
    "algorithm.selection.method=all",
    "algorithm.advantage=reinforce_plus_plus",
    "algorithm.selection.keep=0",
]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cluster.roles={actor: {pool: a}}"], r"`cluster\.roles\.actor` is \{'pool': 'a'\}, and must be text"),
        (["cluster.roles.actor=[a]"], r"`cluster\.roles\.actor` is \['a'\], and must be text"),
        (
            ["cluster.pools.a=[1]"],
            r"`cluster\.pools\.a` is \[1\], and must be a mapping, such as \{processes_per_node: ",
        ),
        (["cluster.pools.a.processes_per_node=[[1]]"], r"`cluster\.pools\.a\.processes_per_node\[0\]` is \[1\]"),
        (["cluster.extra_roles.x.config=5"], r"`cluster\.extra_roles\.x\.config` is 5, and must be a mapping"),
        (["stages=[{num_steps: 3, max_turn: 3}]"], r"unknown key `stages\[0\]\.max_turn`. Did you mean `max_turns`\?"),
        (["stages=[{num_steps: 3}, {num_steps: x}]"], r"`stages\[1\]\.num_steps` is 'x', and must be a whole number"),
    ],
)
def test_a_wrong_entry_of_a_mapping_or_list_of_sections_is_refused_with_its_full_key(words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_run_config(DEMO, words)


def test_a_pool_may_have_the_name_of_a_key():
    words = ["cluster.pools.num_cpus.num_processes=2", "cluster.roles={actor: num_cpus, rollout: num_cpus}"]
    assert load_run_config(DEMO, words).config.actor.num_workers == 2


def test_a_seed_that_is_no_number_of_64_bits_is_refused():
    load_run_config(DEMO, [f"run.seed={2**63 - 1}"])
    with pytest.raises(
        ConfigError, match=r"`run\.seed` is 9223372036854775808, and must be at most 9223372036854775807"
    ):
        load_run_config(DEMO, [f"run.seed={2**63}"])


def test_groups_of_one_trajectory_are_refused_where_those_of_equal_rewards_are_dropped():
    load_run_config(DEMO, [*SINGLE, "algorithm.selection.drop_equal_reward=false"])
    with pytest.raises(ConfigError, match=r"`rollout\.samples_per_prompt` is 1, and .*drop_equal_reward` drops"):
        load_run_config(DEMO, SINGLE)


def test_groups_of_equal_rewards_must_not_be_dropped_before_a_reward_model_has_scored_them():
    model = "reward.model.path=examples/arithmetic/policy"
    load_run_config(DEMO, [model, "algorithm.selection.drop_equal_reward=false"])
    with pytest.raises(ConfigError, match=r"drop_equal_reward` drops groups .* before `reward\.model` scores them"):
        load_run_config(DEMO, [model])


def test_no_file_of_training_prompts_is_refused_with_the_key():
    load_run_config(DEMO, ["data.train_files=[]", f"stages=[{{num_steps: 60, train_files: [{DEMO}]}}]"])
    with pytest.raises(ConfigError, match=r"`data\.train_files` is empty, and there is nothing to train on"):
        load_run_config(DEMO, ["data.train_files=[]"])
