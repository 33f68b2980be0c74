"""Roles, pools, and what is wrong with them before anything starts."""

from pathlib import Path
from typing import Any

import pytest

from agentrl.config.layout import gpu_shares, layout, pool_users, processes_per_node
from agentrl.config.load import load_run_config
from agentrl.config.schema.algorithm import AlgorithmSection, LoraSection, RewardModelSection
from agentrl.config.schema.cluster import ClusterSection, ExtraRoleSection, PoolSection
from agentrl.config.schema.run import ActorSection, ModelSection, RewardSection, RolloutSection, RunConfig
from agentrl.config.validation.layout import layout_problems
from agentrl.errors import ConfigError

MODEL = ModelSection(path="")

POOLS = "pools: {main: {num_processes: 2}, aside: {processes_per_node: [1, 1]}}"


def load(tmp_path: Path, cluster: str, *overrides: str) -> RunConfig:
    file = tmp_path / "c.yaml"
    file.write_text(f"data: {{train_files: [x.jsonl]}}\nmodel: {{path: x}}\ncluster: {{{cluster}}}\n")
    return load_run_config(str(file), overrides).config


def test_without_pools_the_reference_lives_with_the_actor_and_engines_apart():
    config = RunConfig(
        model=MODEL,
        actor=ActorSection(num_workers=4),
        rollout=RolloutSection(num_engines=3),
        algorithm=AlgorithmSection(kl_coefficient=0.1),
    )
    assert [(placement.role, placement.num_processes, placement.pool) for placement in layout(config)] == [
        ("actor_ref", 4, None),
        ("rollout", 3, None),
    ]


def test_with_lora_the_actor_is_the_reference_too():
    config = RunConfig(
        model=MODEL,
        actor=ActorSection(lora=LoraSection(rank=4)),
        algorithm=AlgorithmSection(kl_coefficient=0.1),
    )
    assert [placement.role for placement in layout(config)] == ["actor", "rollout"]


def test_without_pools_a_critic_and_a_reward_model_live_with_the_actor():
    config = RunConfig(
        model=MODEL,
        algorithm=AlgorithmSection(advantage="gae", kl_coefficient=0.1),
        reward=RewardSection(model=RewardModelSection(path="judge")),
    )
    assert [placement.role for placement in layout(config)] == ["actor_ref_critic_reward", "rollout"]


def test_a_critic_and_a_reward_model_go_with_the_actor_or_to_pools_of_their_own(tmp_path: Path):
    models = ["algorithm.advantage=gae", "reward.model.path=y", "algorithm.selection.drop_equal_reward=false"]
    together = load(tmp_path, "pools: {a: {num_processes: 2}}, roles: {actor_rollout_critic_reward: a}", *models)
    assert [placement.role for placement in layout(together)] == ["actor_rollout_critic_reward"]
    apart = load(tmp_path, f"{POOLS}, roles: {{actor_rollout: main, critic: aside, reward: aside}}", *models)
    assert [(placement.role, placement.pool) for placement in layout(apart)] == [
        ("critic", "aside"),
        ("reward", "aside"),
        ("actor_rollout", "main"),
    ]


def test_roles_go_to_their_pools_with_the_engines_last():
    config = RunConfig(
        model=MODEL,
        cluster=ClusterSection(
            pools={"main": PoolSection(num_processes=2), "aside": PoolSection(processes_per_node=[2, 1])},
            roles={"rollout": "aside", "actor": "main", "ref": "aside"},
        ),
    )
    assert [(placement.role, placement.num_processes) for placement in layout(config)] == [
        ("actor", 2),
        ("ref", 3),
        ("rollout", 3),
    ]


def test_the_numbers_of_ranks_and_engines_are_those_of_their_pools(tmp_path: Path):
    config = load(tmp_path, f"{POOLS}, roles: {{actor: main, rollout: aside}}")
    assert (config.actor.num_workers, config.rollout.num_engines) == (2, 2)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ("max_wait_s: 0", "`cluster.max_wait_s` is 0, and must be above 0"),
        (f"{POOLS}, roles: {{actor: main, rollout: main}}", "`cluster.pools.aside` is used by no role"),
        (f"{POOLS}, roles: {{actor: main, rollout: other}}", "`cluster.roles.rollout` is `other`, which is none of"),
        ("pools: {a: {}}, roles: {actor_rollout: a}", "`cluster.pools.a` needs either .* and has neither"),
        (
            "pools: {a: {num_processes: 1, processes_per_node: [1]}}, roles: {actor_rollout: a}",
            "`cluster.pools.a` needs either .* and has both",
        ),
        ("pools: {a: {processes_per_node: [2, 0]}}, roles: {actor_rollout: a}", "must be at least 1"),
        (
            "pools: {a: {num_processes: 1, num_gpus: -1}}, roles: {actor_rollout: a}",
            "num_gpus` is .* must be at least 0",
        ),
        ("pools: {a: {num_processes: 1}}, roles: {actor: a}", "places no `rollout`; add it, alone or in a role"),
        (
            "pools: {a: {num_processes: 1}}, roles: {rollout: a}",
            "no `actor`; add it, .* such as `actor_rollout`",
        ),
        ("pools: {a: {num_processes: 1}}, roles: {actor_rollout_ref: a}", "places `ref`, which `algorithm`"),
        ("pools: {a: {num_processes: 1}}, roles: {actor_rollout_critic: a}", "places `critic`, which `algorithm`"),
        (
            "pools: {a: {num_processes: 1}}, roles: {actor_rollout_reward: a}",
            "places `reward`, which .* `reward.model` do not",
        ),
        (
            "pools: {a: {num_processes: 1}}, roles: {actor_rollout_painter: a}",
            "names `painter`; .*`cluster.extra_roles`",
        ),
        ("pools: {a: {num_processes: 1}}, roles: {actor_rollout: a, rollout: a}", "places `rollout` 2 times"),
        (
            "pools: {a: {num_processes: 1}}, roles: {actor_rollout: a}, extra_roles: {x: {class_path: m.C, pool: b}}",
            "`cluster.extra_roles.x.pool` is `b`",
        ),
        *(
            (
                "pools: {a: {num_processes: 1}}, roles: {actor_rollout: a}, extra_roles: {"
                f"'{name}': {{class_path: m.C, pool: a}}}}",
                f"`cluster.extra_roles` has a role named `{name}`, which the run itself uses",
            )
            for name in ("actor", "ref_critic", "agent_loop")
        ),
    ],
)
def test_a_layout_that_could_not_run_is_refused_by_the_names_of_its_keys(tmp_path: Path, cluster: str, words: str):
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, cluster)


def test_a_size_that_contradicts_its_pool_is_refused(tmp_path: Path):
    cluster = "pools: {a: {num_processes: 2}}, roles: {actor_rollout: a}"
    with pytest.raises(ConfigError, match=r"`actor.num_workers` is 3, and `cluster.pools.a` has 2 processes"):
        load(tmp_path, cluster, "actor.num_workers=3")


def test_only_the_embedded_engine_lives_in_the_process_of_an_actor(tmp_path: Path):
    cluster = "pools: {a: {num_processes: 2}}, roles: {actor_rollout: a}"
    with pytest.raises(ConfigError, match=r"`cluster.roles.actor_rollout`: only the engine `transformers`"):
        load(tmp_path, cluster, "rollout.engine=vllm")


def test_a_reference_that_the_loss_asks_for_must_have_a_place(tmp_path: Path):
    cluster = "pools: {a: {num_processes: 2}}, roles: {actor_rollout: a}"
    with pytest.raises(ConfigError, match=r"places no `ref`; add it, alone or in a role such as `actor_ref`"):
        load(tmp_path, cluster, "algorithm.kl_coefficient=0.1")


@pytest.mark.parametrize(
    ("component", "override"), [("critic", "algorithm.advantage=gae"), ("reward", "reward.model.path=y")]
)
def test_a_critic_or_reward_model_that_is_asked_for_must_have_a_place(tmp_path: Path, component: str, override: str):
    cluster = "pools: {a: {num_processes: 2}}, roles: {actor_rollout: a}"
    with pytest.raises(
        ConfigError, match=f"places no `{component}`; add it, alone or in a role such as `actor_{component}`"
    ):
        load(tmp_path, cluster, override)


def test_ranks_that_would_never_get_a_share_are_refused(tmp_path: Path):
    sizes = ["rollout.prompts_per_step=4", "actor.mini_batches_per_step=4", "algorithm.selection.keep=2"]
    load(tmp_path, "", "actor.num_workers=2", *sizes)
    with pytest.raises(ConfigError, match=r"1 groups .*of 2 trajectories .*fewer than the actor's 3 ranks"):
        load(tmp_path, "", "actor.num_workers=3", *sizes)
    pools = "pools: {a: {num_processes: 2}, b: {num_processes: 3}}, roles: {actor_rollout: a, critic: b}"
    with pytest.raises(ConfigError, match=r"fewer than the critic's 3 ranks"):
        load(tmp_path, pools, "algorithm.advantage=gae", *sizes)


GPUS_OF_POOLS = {"gpus": 1.0, "others": 1.0, "half": 0.5, "other half": 0.5, "cpus": 0.0}


@pytest.mark.parametrize(
    ("transport", "actor", "rollout", "words"),
    [
        ("cuda_ipc", "gpus", "others", "each has others; take `broadcast`"),
        ("cuda_ipc", "cpus", "cpus", "not both have GPUs; take `shared_memory`"),
        ("broadcast", "gpus", "gpus", "they share them; take `cuda_ipc`"),
        ("broadcast", "gpus", "cpus", "one side alone has GPUs; take `shared_memory`"),
        ("cuda_ipc", "gpus", "gpus", None),
        ("cuda_ipc", "half", "other half", None),
        ("broadcast", "gpus", "others", None),
        ("broadcast", "half", "other half", None),
        ("broadcast", "cpus", "cpus", None),
        ("shared_memory", "gpus", "cpus", None),
    ],
)
def test_a_transport_that_the_devices_do_not_have_is_refused(
    transport: Any, actor: str, rollout: str, words: str | None
):
    pools = {name: PoolSection(num_processes=1, num_gpus=GPUS_OF_POOLS[name]) for name in (actor, rollout)}
    cluster = ClusterSection(pools=pools, roles={"actor": actor, "rollout": rollout}, weight_transport=transport)
    problems = layout_problems(RunConfig(model=MODEL, cluster=cluster))
    if words is None:
        assert problems == []
    else:
        [problem] = problems
        assert f"`cluster.weight_transport` is `{transport}`" in problem
        assert words in problem


@pytest.mark.parametrize("roles", ["actor: a, critic_ref: b, rollout: b", "actor_ref: a, critic: b, rollout: b"])
def test_engines_that_sleep_for_a_critic_on_their_gpus_are_taken(roles: str, tmp_path: Path):
    pools = "a: {num_processes: 1, num_gpus: 1}, b: {num_processes: 1, num_gpus: 1}"
    ppo = ["algorithm.advantage=gae", "algorithm.kl_coefficient=0.1", "critic.path=examples/arithmetic/policy"]
    words = [*ppo, "cluster.colocated=true"]
    load(tmp_path, f"pools: {{{pools}}}, roles: {{{roles}}}", *words)


def test_an_engine_that_is_split_over_more_gpus_than_its_process_has_is_refused(tmp_path: Path):
    cluster = "pools: {a: {num_processes: 1, num_gpus: 1}}, roles: {actor: a, rollout: a}"
    words = (
        r"`rollout.tensor_parallel_size` \(4\) times .*need 4 GPUs .*`cluster.pools.a.num_gpus` gives each process 1"
    )
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, cluster, "rollout.engine=vllm", "rollout.tensor_parallel_size=4")


@pytest.mark.usefixtures("vllm_is_installed")
def test_an_engine_has_only_its_share_of_the_gpus_of_a_pool_that_others_are_in(tmp_path: Path):
    engine = ["rollout.engine=vllm", "rollout.tensor_parallel_size=2"]
    cluster = "pools: {a: {num_processes: 1, num_gpus: %d}}, roles: {actor: a, rollout: a}"
    engine.append("rollout.kv_memory_gb=4")
    load(tmp_path, cluster % 4, *engine)
    words = r"need 2 GPUs .* gives each process 2, which 2 roles share .*; set it to 4, .* or give `rollout` a pool"
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, cluster % 2, *engine)
    load(tmp_path, cluster % 1, "rollout.engine=vllm", "rollout.kv_memory_gb=4")


@pytest.mark.usefixtures("vllm_is_installed")
@pytest.mark.parametrize(
    ("pools", "engines", "is_refused"),
    [
        ("{a: {num_processes: 2, num_gpus: 1}}", "a", True),
        ("{a: {num_processes: 2, num_gpus: 1}}", "a, colocated: true", True),
        ("{a: {num_processes: 1, num_gpus: 0.5}, b: {num_processes: 1, num_gpus: 0.5}}", "b", True),
        ("{a: {num_processes: 2, num_gpus: 1}, b: {num_processes: 1, num_gpus: 1}}", "b", False),
        ("{a: {num_processes: 2}}", "a", False),
    ],
)
def test_vllm_on_the_gpus_of_the_models_needs_the_size_of_its_cache(
    tmp_path: Path, pools: str, engines: str, is_refused: bool
):
    engine, _, other = engines.partition(", ")
    cluster = f"pools: {pools}, roles: {{actor: a, rollout: {engine}}}" + (f", {other}" if other else "")
    load(tmp_path, cluster, "rollout.engine=vllm", "rollout.kv_memory_gb=4")
    if not is_refused:
        load(tmp_path, cluster, "rollout.engine=vllm")
        return
    with pytest.raises(ConfigError, match=r"`rollout\.kv_memory_gb` is not set, and vLLM shares GPUs with the models"):
        load(tmp_path, cluster, "rollout.engine=vllm")


@pytest.mark.parametrize(
    "pool",
    ["num_processes: 2, num_gpus: 4", "processes_per_node: [3], num_gpus: 0.5", "num_processes: 1, num_gpus: 0.7"],
)
def test_parts_of_processors_and_gpus_that_ray_gives_are_not_refused(tmp_path: Path, pool: str):
    load(tmp_path, f"pools: {{a: {{{pool}}}}}, roles: {{actor: a, rollout: a}}")


@pytest.mark.parametrize("num_roles", [1, 2, 3, 5])
def test_a_share_of_a_gpu_is_more_than_half_of_what_the_roles_before_have_left(num_roles: int):
    shares = gpu_shares(1, num_roles)
    left = [1 - sum(shares[:number]) for number in range(num_roles)]
    assert sum(shares) == pytest.approx(1)
    assert all(2 * share > remaining for share, remaining in zip(shares, left, strict=True))


def test_the_roles_of_a_pool_are_in_the_order_in_which_they_start_with_the_engines_last():
    cluster = ClusterSection(
        pools={"a": PoolSection(num_processes=1), "b": PoolSection(num_processes=1)},
        roles={"rollout": "a", "actor": "a", "ref": "b"},
        extra_roles={"painter": ExtraRoleSection(class_path="m.C", pool="a")},
    )
    users = pool_users(RunConfig(model=MODEL, cluster=cluster), "a")
    assert users == ["cluster.roles.actor", "cluster.extra_roles.painter", "cluster.roles.rollout"]


@pytest.mark.parametrize(("pool", "number"), [("processes_per_node: [2, 3]", 3), ("num_processes: 5", 5)])
def test_the_ranks_that_share_the_cores_of_a_machine_are_those_of_one_node(tmp_path: Path, pool: str, number: int):
    assert (
        processes_per_node(load(tmp_path, f"pools: {{a: {{{pool}}}}}, roles: {{actor_rollout: a}}"), "actor") == number
    )
    assert processes_per_node(load(tmp_path, "", "actor.num_workers=4"), "actor") == 4


def test_ranks_that_cannot_be_divided_into_sequence_groups_are_refused(tmp_path: Path):
    load(tmp_path, "", "actor.num_workers=4", "actor.sequence_parallel_size=2")
    message = r"`actor.sequence_parallel_size` is 2, .* the 3 ranks of `actor` \(`actor.num_workers`\); change one"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, "", "actor.num_workers=3", "actor.sequence_parallel_size=2")
    cluster = "pools: {a: {num_processes: 4}, b: {num_processes: 2}}, roles: {actor_rollout: a, critic: b}"
    words = ["algorithm.advantage=gae", "actor.sequence_parallel_size=4"]
    with pytest.raises(ConfigError, match=r"the 2 ranks of `critic` \(`cluster.pools.b`\)"):
        load(tmp_path, cluster, *words)


def test_a_mini_batch_needs_a_trajectory_for_each_sequence_group_and_not_for_each_rank(tmp_path: Path):
    sizes = ["rollout.prompts_per_step=4", "actor.mini_batches_per_step=4", "algorithm.selection.keep=2"]
    load(tmp_path, "", "actor.num_workers=4", "actor.sequence_parallel_size=2", *sizes)
    with pytest.raises(ConfigError, match=r"fewer than the actor's 3 groups of 2 ranks"):
        load(tmp_path, "", "actor.num_workers=6", "actor.sequence_parallel_size=2", *sizes)
