"""Code judges of a run, and the short form of the tools that ask them."""

from typing import Literal

from agentrl.config.schema.addresses import JudgeUrl
from agentrl.config.schema.fields import Count, CountOrZero, Seconds, Section, resumable


class JudgeSection(Section):
    """Code judges of the run: running ones, given by address, or judges that the run starts and stops."""

    hosts: list[JudgeUrl] = resumable([])
    """Addresses of running judges, `host:port` or URLs; each call goes to the one with the fewest calls per slot. Empty: the
    run starts its own.
    """
    token_env: str | None = resumable(None)
    """Environment variable that holds the bearer token of running judges; the token itself is never written."""
    placement: Literal["driver", "per_node"] = resumable("driver")
    """Place of judges that the run starts: one on the runner's machine, or one on every Ray node."""
    num_slots: CountOrZero = resumable(0)
    """Programs judged at once by a judge that the run starts; 0: one per core and one more."""
    max_wall_time_s: Seconds = 10.0
    """Wall-clock limit of one judged program in seconds, for a judge that the run starts; the CPU-time limit is half of it, so
    that a busy machine does not fail correct programs.
    """
    max_memory_mb: Count = 512
    """Memory limit of one judged program in MB, for a judge that the run starts."""
    min_isolation: Literal["A", "B", "C", "D"] = "B"
    """Weakest isolation tier accepted, also of a running judge; `D` (no isolation) must be set here."""


class CodeJudgeTools(Section):
    """rStar2-Agent's short form of the built-in Python tools and their code judge."""

    host_addr: str | None = None
    """Address of a running judge, instead of `judge.hosts`; absent: the run's judges."""
    host_port: int | None = None
    """Its port."""
    batch_size: Count = 64
    """Largest number of submissions in one request."""
    concurrency: Count = 32
    """Requests in flight per worker, not counting those that wait for their last few programs."""
    batch_timeout_seconds: Seconds = 30.0
    """Time limit for one batch, in seconds."""
    enable_jupyter: bool = False
    """Add the tool `jupyter_code`: a notebook per trajectory, whose variables live from call to call."""


class ToolsSection(Section):
    """Tools defined in the run config itself."""

    code_judge: CodeJudgeTools | None = None
    """The short form; absent if `tool_config_path` names a file instead."""
