"""The type that `model.dtype: auto` stands for."""

from pathlib import Path

import pytest
import torch
import yaml

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError
from agentrl.models import bfloat16_support
from agentrl.run.plan import prepare
from agentrl.run.preflight.models import dtype
from agentrl.run.preflight.models.dtype import best_dtype, choose_dtype


def machine(monkeypatch: pytest.MonkeyPatch, *, amx: bool = False, avx512: bool = False, capability: float = 0.0):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(dtype, "gpus_here", lambda: int(capability > 0))
    monkeypatch.setattr(dtype, "query_gpus", lambda field: [9.0, capability])


@pytest.mark.parametrize(
    ("hardware", "dtype", "reason"),
    [
        ({}, "float32", "no instructions for bfloat16"),
        ({"amx": True, "avx512": True}, "bfloat16", "AMX"),
        ({"avx512": True}, "bfloat16", "AVX512-BF16"),
        ({"capability": 9.0}, "bfloat16", "GPUs here compute it"),
        ({"capability": 7.5, "amx": True}, "float32", "compute capability 7.5"),
    ],
)
def test_it_is_bfloat16_where_the_gpu_or_the_cpu_has_it(
    monkeypatch: pytest.MonkeyPatch, hardware: dict[str, float], dtype: str, reason: str
):
    machine(monkeypatch, **hardware)  # type: ignore[arg-type]
    chosen, why = best_dtype()
    assert chosen == dtype
    assert reason in why


def test_this_machine_computes_in_what_was_chosen():
    dtype, _ = best_dtype()
    x = torch.ones(2, 2, dtype=getattr(torch, dtype))
    assert torch.equal(x @ x, 2 * x)
    assert bfloat16_support.cpu_bfloat16() in (None, "AMX", "AVX512-BF16")


def test_a_run_keeps_the_type_with_which_it_began_on_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = [f"run.dir={tmp_path / 'run'}", "model.dtype=auto"]
    machine(monkeypatch, avx512=True)
    begun = prepare(load_run_config("configs/demo.yaml", words))
    begun.directory.close()
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]["dtype"] == "bfloat16"
    assert begun.notes == ["model.dtype: auto is bfloat16: this CPU has AVX512-BF16"]
    machine(monkeypatch)
    resumed = prepare(load_run_config("configs/demo.yaml", words))
    assert resumed.config.model.dtype == "bfloat16"
    assert resumed.notes == ["model.dtype: auto is bfloat16, with which this run began"]


def test_a_cluster_of_other_machines_needs_a_name(tmp_path: Path):
    words = [f"run.dir={tmp_path / 'run'}", "model.dtype=auto", "cluster.address='10.0.0.1:6379'"]
    with pytest.raises(
        ConfigError, match=r"`model.dtype` is `auto`, but the machines of the cluster at 10\.0\.0\.1:6379"
    ):
        choose_dtype(load_run_config("configs/demo.yaml", words))


def test_a_named_type_stays():
    loaded = load_run_config("configs/demo.yaml")
    assert choose_dtype(loaded) == (loaded, [])
