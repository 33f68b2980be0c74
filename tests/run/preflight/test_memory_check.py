"""Models that do not fit their devices are refused before any process starts."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.weight_files import ModelFolder
from agentrl.run.plan import prepare
from agentrl.run.preflight.memory import DeviceEstimate, Machine, check_memory, estimate_devices, read_size
from agentrl.run.preflight.memory_model import GIB, Memory, ModelSize
from agentrl.run.stages import stages_of

DEMO, POLICY = str(SHIPPED_FOLDER / "configs" / "demo.yaml"), SHIPPED_FOLDER / "examples" / "arithmetic" / "policy"
BIG = ModelSize(num_weights=GIB, vocabulary=1000, num_layers=2, width=64, heads_width=64, kv_width=64, inner_width=64)
SIZES = {"model.path": BIG}
QWEN3_14B = ModelSize(
    num_weights=14_768_307_200,
    vocabulary=151_936,
    num_layers=40,
    width=5120,
    heads_width=5120,
    kv_width=1024,
    inner_width=17_408,
)
HOST = Machine(ram_bytes=64 * GIB)
GPUS = Machine(ram_bytes=64 * GIB, gpu_bytes=[80 * GIB] * 4)
IN_POOLS = ["cluster.pools.a.num_processes=4", "cluster.pools.a.num_gpus=1"]


def config_of(*words: str) -> RunConfig:
    return load_run_config(DEMO, words).config


def on_gpus(config: RunConfig, machine: Machine = GPUS) -> list[DeviceEstimate]:
    """Return what is on the GPUs alone."""
    *devices, host = estimate_devices(config, SIZES, machine)
    assert "GPU" not in host.device
    return devices


def test_the_weights_of_a_folder_are_counted_without_loading_them(tmp_path: Path):
    for name, path, tied in (("shipped", POLICY, True), ("untied", tmp_path, False)):
        if not tied:
            settings = Qwen3Config(hidden_size=32, num_hidden_layers=2, vocab_size=100, tie_word_embeddings=False)
            AutoModelForCausalLM.from_config(settings).save_pretrained(path, max_shard_size="100KB")
            assert len(list(path.glob("*.safetensors"))) > 1
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        size = read_size(str(path))
        assert size is not None
        assert size.num_weights == sum(weight.numel() for weight in model.parameters()), name


@pytest.mark.parametrize("max_shard_size", ["1GB", "20KB"])
def test_files_that_the_loader_leaves_alone_are_not_counted(max_shard_size: str, tmp_path: Path):
    AutoModelForCausalLM.from_pretrained(POLICY).save_pretrained(tmp_path, max_shard_size=max_shard_size)
    shutil.copy2(POLICY / "model.safetensors", tmp_path / "consolidated.safetensors")
    assert read_size(str(tmp_path)) == read_size(str(POLICY))
    assert len(ModelFolder(str(tmp_path))) == len(ModelFolder(str(POLICY)))


def test_an_index_that_names_nothing_is_refused(tmp_path: Path):
    for name in ("config.json", "tokenizer.json"):
        shutil.copy2(POLICY / name, tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}}))
    with pytest.raises(ConfigError, match=r"model\.path`: .* cannot be read: KeyError\('weight_map'\)"):
        check_memory(config_of(f"model.path={tmp_path}"), HOST)


def test_without_gpus_all_processes_share_the_memory_of_the_machine():
    [device] = estimate_devices(config_of("actor.num_workers=2"), SIZES, HOST)
    assert device.memory.certain == (16 + 12 + 4 + 4) * GIB, "the models, a checkpoint, what is shared, the engine"
    assert device.capacity_bytes == 64 * GIB


def test_ranks_and_engines_have_gpus_of_their_own_or_share_the_only_one():
    config = config_of("actor.num_workers=2", "rollout.num_engines=2")
    actor, engine = on_gpus(config)
    assert (actor.memory.certain, engine.memory.certain) == (8 * GIB, 4 * GIB)
    assert actor.device == "each GPU of `actor`"
    [shared] = on_gpus(config_of(), replace(GPUS, gpu_bytes=[80 * GIB]))
    assert shared.memory.certain == 20 * GIB


def test_what_shares_a_pool_shares_its_gpus():
    config = config_of(*IN_POOLS, "cluster.roles.actor=a", "cluster.roles.rollout=a")
    [device] = on_gpus(config)
    assert device.memory.certain == (4 + 4) * GIB
    assert device.device == "each GPU of `cluster.pools.a`"
    half = config_of(*IN_POOLS, "cluster.pools.a.num_gpus=0.5", "cluster.roles.actor_rollout=a")
    [device] = on_gpus(half)
    assert device.memory.certain == 2 * (4 + 4) * GIB


@pytest.mark.usefixtures("vllm_is_installed")
def test_engines_that_sleep_during_updates_do_not_add_up_with_what_only_updates_take():
    words = ["cluster.roles.actor=a", "cluster.roles.rollout=a", "rollout.engine=vllm", "rollout.kv_memory_gb=8"]
    [beside] = on_gpus(config_of(*IN_POOLS, *words))
    assert beside.memory.certain == (4 + 4 + 8) * GIB
    colocated = config_of(*IN_POOLS, *words, "cluster.colocated=true")
    updates, rollouts = on_gpus(colocated)
    assert [updates.device, rollouts.device] == [
        "each GPU of `cluster.pools.a`, in updates",
        "each GPU of `cluster.pools.a`, in rollouts",
    ]
    assert updates.memory.certain == 4 * GIB
    assert updates.memory.activations_at_most == beside.memory.activations_at_most > 0
    assert rollouts.memory.certain == (3 + 4 + 8) * GIB, "no gradients"
    assert rollouts.memory.activations_at_most == 0


def test_roles_that_share_gpus_with_sleeping_engines_give_back_what_they_computed_with():
    layers = ["cluster.roles.actor=a", "cluster.roles.critic=a", "cluster.roles.rollout=a", "algorithm.advantage=gae"]
    [beside] = on_gpus(config_of(*IN_POOLS, *layers))
    updates, _ = on_gpus(config_of(*IN_POOLS, *layers, "cluster.colocated=true"))
    assert beside.memory.gradients == 2 * updates.memory.gradients == 2 * GIB


@pytest.mark.usefixtures("vllm_is_installed")
def test_the_host_of_models_on_gpus_has_their_copies_for_a_checkpoint_and_the_weights_that_engines_map():
    words = ["cluster.roles.actor=a", "cluster.roles.rollout=a", "rollout.engine=vllm", "rollout.kv_memory_gb=1"]
    host = estimate_devices(config_of(*IN_POOLS, *words), SIZES, GPUS)[-1]
    assert (host.device, host.capacity_bytes) == ("this machine", 64 * GIB)
    assert host.memory == Memory(copies=16 * GIB), "of all four ranks; once"
    assert estimate_devices(config_of("actor.num_workers=2"), SIZES, GPUS)[-1].memory == host.memory
    stream = config_of(*IN_POOLS, *words, "cluster.weight_transport=cuda_ipc")
    assert estimate_devices(stream, SIZES, GPUS)[-1].memory == Memory(copies=12 * GIB)


@pytest.mark.usefixtures("vllm_is_installed")
def test_the_recipe_of_14_billion_weights_fits_eight_gpus_of_80_gb():
    sizes = {"model.path": QWEN3_14B}
    for stage in stages_of(load_run_config("configs/rstar2_qwen3_14b.yaml").config):
        machine = Machine(ram_bytes=2000 * GIB, gpu_bytes=[79 * GIB] * 8)
        *devices, host = estimate_devices(stage.config, sizes, machine)
        assert [device.memory.at_most < 76 * GIB for device in devices] == [True, True], devices
        assert host.memory.at_most < 256 * GIB


def test_an_engine_in_the_only_process_of_the_actor_maps_nothing():
    alone = ["cluster.pools.a.num_processes=1", "cluster.pools.a.num_gpus=1", "cluster.roles.actor_rollout=a"]
    assert estimate_devices(config_of(*alone), SIZES, GPUS)[-1].memory.copies == 12 * GIB
    four = config_of(*IN_POOLS, "cluster.roles.actor_rollout=a")
    assert estimate_devices(four, SIZES, GPUS)[-1].memory.copies == 16 * GIB


def test_the_gpus_of_another_machine_are_those_that_the_config_says():
    config = config_of(*IN_POOLS, "cluster.roles.actor_rollout=a", "cluster.address=10.0.0.1:6379")
    [device] = on_gpus(config, HOST)
    assert device.capacity_bytes is None
    [device] = on_gpus(
        config.model_copy(update={"cluster": config.cluster.model_copy(update={"gpu_memory_gb": 24.0})}), HOST
    )
    assert device.capacity_bytes == 24 * GIB


def test_what_fits_is_reported_in_one_line_and_what_does_not_is_refused_with_the_keys(tmp_path: Path):
    [line] = check_memory(config_of(), HOST).notes
    assert line.startswith("memory (estimate), this machine: 0.0")
    with pytest.raises(
        ConfigError, match=r"this machine: .* of 0.0 GiB.*cannot fit: shrink the largest part \(`actor\.max_"
    ):
        check_memory(config_of(), Machine(ram_bytes=2**20))


def test_a_row_that_cannot_fit_a_gpu_is_refused_and_on_a_host_only_warned_of():
    """A host may swap, and its allocator may keep less."""
    config = config_of()
    report = check_memory(config, Machine(ram_bytes=64 * GIB))
    assert report.warnings == []
    [line] = report.notes
    at_most, certain = (float(re.findall(pattern, line)[0]) for pattern in (r"at most ([\d.]+)", r": ([\d.]+) of"))
    assert certain < 0.2 < at_most < 4
    small = int((certain + at_most) / 2 * GIB)
    [warning] = check_memory(config, Machine(ram_bytes=small)).warnings
    assert re.match(r"memory \(estimate\), this machine: .* may not fit with long rows .* `actor\.max_tok", warning)
    with pytest.raises(
        ConfigError, match=r"the GPU of this machine: .*cannot fit: .*`actor\.activation_checkpointing`"
    ):
        check_memory(config, Machine(ram_bytes=64 * GIB, gpu_bytes=[small]))


@pytest.mark.usefixtures("vllm_is_installed")
def test_the_recipe_without_activation_checkpointing_is_refused():
    recipe = load_run_config("configs/rstar2_qwen3_14b.yaml", ["actor.activation_checkpointing=false"]).config
    updates = estimate_devices(recipe, {"model.path": QWEN3_14B}, GPUS)[0]
    assert updates.device == "each GPU of `cluster.pools.gpus`, in updates"
    assert updates.refused_bytes > 150 * GIB > 79 * GIB


def test_a_model_whose_files_are_not_here_has_no_estimate(tmp_path: Path):
    for name in ("config.json", "tokenizer.json"):
        shutil.copy2(POLICY / name, tmp_path)
    assert "no estimate: `model.path`" in check_memory(config_of(f"model.path={tmp_path}"), HOST).notes[0]
    assert "no estimate: `model.path` (org/name)" in check_memory(config_of("model.path=org/name"), HOST).notes[0]


def test_a_host_that_is_too_small_for_models_on_gpus_is_refused():
    with pytest.raises(ConfigError, match=r"this machine: .*copies .*`cluster\.weight_transport`"):
        check_memory(config_of(), Machine(ram_bytes=2**20, gpu_bytes=[80 * GIB] * 2))


def test_the_demo_fits_a_machine_with_gpus():
    assert check_memory(config_of(), GPUS).notes


def test_a_run_that_may_not_fit_starts_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    [line] = check_memory(config_of(), HOST).notes
    certain, at_most = (float(re.findall(pattern, line)[0]) for pattern in (r": ([\d.]+) of", r"at most ([\d.]+)"))
    small = int((certain + at_most) / 2 * GIB)
    monkeypatch.setattr("agentrl.run.preflight.memory.this_machine", lambda: Machine(ram_bytes=small))
    plan = prepare(load_run_config(DEMO, [f"run.dir={tmp_path / 'run'}"]))
    plan.directory.close()
    [warning] = plan.warnings
    assert "That may not fit" in warning
