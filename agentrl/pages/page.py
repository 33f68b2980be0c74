"""Self-contained HTML pages: no script, no request, every text escaped; and what their tables hold."""

import os
import platform
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from agentrl.checkpoints.store import write_whole

_PACKAGES = ("agentrl", "torch", "transformers", "vllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of texts; columns after the first are aligned to the right, but for last ones of words."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    num_texts: int = 0
    """Number of last columns that hold words, aligned to the left."""


def write_page(file: Path, template: str, **content: Any) -> None:
    """Write a page from a template of `agentrl/pages/templates` or `agentrl/evaluation/pages`."""
    pages = Environment(
        loader=ChoiceLoader([PackageLoader("agentrl.pages"), PackageLoader("agentrl.evaluation", "pages")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.globals["percent"] = _percent
    text = pages.get_template(template).render(**content)
    # A policy can write half a surrogate pair, which has no UTF-8 form.
    write_whole(file, text.encode(errors="replace"))


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide what is sampled."""
    versions = {"Python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def machine_text(gpus: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Return this machine's system, cores, and NVIDIA's GPUs as their driver's folder names them."""
    infos = [file.read_text() for file in sorted(gpus.glob("*/information"))]
    models = Counter(line.partition(":")[2].strip() for info in infos for line in info.splitlines() if "Model:" in line)
    parts = [platform.platform(), f"{os.cpu_count()} cores", *(f"{count} x {name}" for name, count in models.items())]
    return ", ".join(parts)


def now_text() -> str:
    """Return the time of day for a report."""
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"
