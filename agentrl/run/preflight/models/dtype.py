"""The value of `model.dtype: auto`, chosen when a run starts and kept when it resumes."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import yaml

from agentrl.cluster.placement.gpus import gpus_here
from agentrl.config.load import LoadedConfig
from agentrl.config.schema.run import DType, ModelSection
from agentrl.errors import ConfigError

_FIRST_WITH_BFLOAT16 = 8.0
"""Compute capability of NVIDIA's GPUs (Ampere)."""


def choose_dtype(loaded: LoadedConfig) -> tuple[LoadedConfig, list[str]]:
    """Return the config with a type in the place of `auto`, and a line for the log where it was `auto`.

    Raises:
        ConfigError: other machines compute, in a cluster.
    """
    config = loaded.config
    if config.model.dtype != "auto":
        return loaded, []
    if config.cluster.address is not None and _saved_dtype(config.run.dir) is None:
        raise ConfigError(
            f"{loaded.path.name}: `model.dtype` is `auto`, but the machines of the cluster at {config.cluster.address} are "
            "those that compute. Name `bfloat16` or `float32`"
        )
    model, note = chosen_dtype(config.model, run_dir=config.run.dir)
    return replace(loaded, config=config.model_copy(update={"model": model})), [note]


def chosen_dtype(model: ModelSection, *, run_dir: str | None) -> tuple[ModelSection, str]:
    """Return the section with the type of the run in `run_dir`, or the best of this machine, and a line that says so."""
    if (saved := _saved_dtype(run_dir)) is not None:
        return model.model_copy(update={"dtype": saved}), f"model.dtype: auto is {saved}, with which this run began"
    dtype, reason = best_dtype()
    return model.model_copy(update={"dtype": dtype}), f"model.dtype: auto is {dtype}: {reason}"


def best_dtype() -> tuple[DType, str]:
    """Return the type in which this machine computes fastest, and why."""
    if gpus_here() > 0:
        capability = min(query_gpus("compute_cap"), default=_FIRST_WITH_BFLOAT16)
        if capability < _FIRST_WITH_BFLOAT16:
            return "float32", f"a GPU here has compute capability {capability:g}, without bfloat16"
        return "bfloat16", "the GPUs here compute it"
    from agentrl.models.bfloat16_support import cpu_bfloat16  # loads torch: where it is asked alone

    if instructions := cpu_bfloat16():
        return "bfloat16", f"this CPU has {instructions}"
    return "float32", "this CPU has no instructions for bfloat16"


def query_gpus(field: str) -> list[float]:
    """Return a field of `nvidia-smi` for each of NVIDIA's GPUs of this machine; empty if there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return [float(word) for word in answer.stdout.split()] if answer.returncode == 0 else []


def _saved_dtype(run_dir: str | None) -> DType | None:
    file = Path(run_dir, "config.yaml") if run_dir is not None else None
    if file is None or not file.is_file():
        return None
    saved = yaml.safe_load(file.read_bytes())
    dtype = saved.get("model", {}).get("dtype") if isinstance(saved, dict) else None
    return dtype if dtype in ("float32", "bfloat16") else None
