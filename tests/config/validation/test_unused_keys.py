from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
DEMO, DEMO_PPO = str(CONFIGS / "demo.yaml"), str(CONFIGS / "demo_ppo.yaml")
REMOTE = ["judge.hosts=['10.0.0.1:80']"]
UNVALIDATED = ["validation.every_steps=0"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["reward.model.weight=0.3"], r"`reward\.model\.weight` is 0\.3, but there is no reward model; name one"),
        (["reward.model.activation=sigmoid"], r"`reward\.model\.activation` is sigmoid, but there is no reward model"),
        ([*REMOTE, "judge.num_slots=3"], r"`judge\.num_slots` is 3, but it is for judges that the run starts"),
        (
            [*REMOTE, "judge.num_slots=9"],
            r"`judge\.num_slots` is 9, .* leave it out",
        ),
        (["judge.hosts=[a:1]", "judge.num_slots=9"], r"`judge\.num_slots` is 9, .* `judge\.hosts` names"),
        (["actor.lora.alpha=64"], r"`actor\.lora\.alpha` is 64, but `actor\.lora\.rank` is 0; set a rank"),
        ([*UNVALIDATED, "checkpoint.keep_best=4"], r"`checkpoint\.keep_best` is 4, but `validation\.every_steps` is 0"),
    ],
)
def test_a_key_that_nothing_would_read_is_refused(words: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        load_run_config(DEMO, words)


@pytest.mark.parametrize(
    "words",
    [
        [*REMOTE, "judge.max_wall_time_s=10"],
        ["actor.lora.rank=4", "actor.lora.alpha=64"],
        [*UNVALIDATED, "checkpoint.keep_best=0"],
        ["checkpoint.keep_best=4", "validation.samples_per_prompt=4"],
    ],
)
def test_such_a_key_is_taken_where_it_is_read_or_says_what_is_so_anyway(words: list[str]):
    load_run_config(DEMO, words)


def test_an_evaluation_reads_its_samples_whatever_training_does():
    loaded = load_run_config(DEMO, [*UNVALIDATED, "validation.samples_per_prompt=4"], purpose=Purpose.EVALUATION)
    assert loaded.config.validation.samples_per_prompt == 4


def test_rewards_that_are_all_weighed_with_0_are_refused():
    load_run_config(DEMO_PPO, ["reward.weight=1", "reward.model.weight=0"])
    load_run_config(DEMO_PPO, ["reward.weight=1", "reward.model.weight=-1"])
    with pytest.raises(ConfigError, match=r"`reward\.weight` is -1, and must be at least 0"):
        load_run_config(DEMO_PPO, ["reward.weight=-1"])
    with pytest.raises(ConfigError, match=r"`reward\.weight` and `reward\.model\.weight` are both 0"):
        load_run_config(DEMO_PPO, ["reward.model.weight=0"])
