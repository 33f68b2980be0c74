"""Every setting of the judge: on the command line as `--max-memory-mb 512`, in the environment as `CODE_JUDGE_MAX_MEMORY_MB`.

The command line wins over the environment, and both over the names of code-judge (`MAX_MEMORY` and its like), which are
honoured where they make sense here.
"""

import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from code_judge_server.languages import LanguageRules
from code_judge_server.limits import LimitPolicy
from code_judge_server.preload_sets import preload_sets
from code_judge_server.schemas import IsolationTier, Limits
from code_judge_server.wire_fields import LanguageName, PreloadName

ENVIRONMENT_PREFIX = "CODE_JUDGE_"

CODE_JUDGE_NAMES = {
    "MAX_EXECUTION_TIME": (
        "max_cpu_time_s",
        "max_wall_time_s",
    ),  # wall clock there, which CPU time passes by threads only
    "MAX_MEMORY": ("max_memory_mb",),
    "MAX_WORKERS": ("num_slots",),
    "MAX_STDOUT_ERROR_LENGTH": ("max_reply_chars",),
    "MAX_QUEUE_WORK_LIFE_TIME": ("max_queue_time_s",),
}
"""Environment names of code-judge, and the settings that they stand for."""

MIB = 1024 * 1024
"""Bytes of the unit of what is named `_mb`."""


class Settings(BaseSettings):
    """Run untrusted programs on request and judge what they print."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
        cli_prog_name="python -m code_judge_server",
        use_attribute_docstrings=True,
        extra="forbid",
        frozen=True,
    )

    host: str = "127.0.0.1"
    """Address to listen on; any other than loopback needs a token."""
    port: int = Field(default=8088, ge=0, le=65535)
    """Port to listen on; 0 takes a free one. The line `listening on http://ADDRESS:PORT` on stdout tells which."""
    token: SecretStr | None = None
    """Bearer token that every request must carry but those that probe: /ping, /v1/ping, /v1/ready. Better in the environment
    (CODE_JUDGE_TOKEN) than in a command line."""
    require_isolation: IsolationTier = IsolationTier.B
    """Weakest isolation that the server starts with: A, B, C or D. D isolates nothing and is for loopback only."""
    use_isolation: IsolationTier | None = None
    """For tests and comparisons: this tier and no other; absent: the best that this machine gives."""

    num_slots: int = Field(default=0, ge=0)
    """Programs that compute at once; 0 takes one per core and one more. (MAX_WORKERS)"""
    spare_slots: int | None = Field(default=None, ge=0)
    """Slots more, used only while programs in others sleep; absent: two per slot."""

    default_cpu_time_s: float | None = Field(default=None, gt=0)
    """CPU time of a program whose submission names none; absent: the maximum."""
    max_cpu_time_s: float = Field(default=10.0, gt=0)
    """CPU time of one program at most; a submission that asks for more gets this. (MAX_EXECUTION_TIME)"""
    default_wall_time_s: float | None = Field(default=None, gt=0)
    """Wall clock of a program whose submission names none; absent: the maximum."""
    max_wall_time_s: float = Field(default=0.0, ge=0)
    """Wall clock of one program at most; 0 takes twice the CPU time, so that a busy machine fails no honest program.
    (MAX_EXECUTION_TIME)"""
    default_memory_mb: int | None = Field(default=None, ge=32)
    """Memory of a program whose submission names none, in MiB; absent: the maximum."""
    max_memory_mb: int = Field(default=512, ge=32)
    """Memory of one program at most, in MiB. (MAX_MEMORY)"""
    max_output_bytes: int = Field(default=MIB, ge=1)
    """Bytes that a program may write to stdout, and as many to stderr; it is killed at the next one."""
    max_reply_chars: int = Field(default=65536, ge=0)
    """Characters of stdout and of stderr in a reply; the rest is judged, but cut from it. (MAX_STDOUT_ERROR_LENGTH)"""
    max_tasks: int = Field(default=256, ge=1)
    """Processes and threads of one program."""
    max_disk_mb: int = Field(default=64, ge=1)
    """Files that a program writes, in MiB."""

    compile_time_s: float = Field(default=30.0, gt=0)
    """CPU time of one compilation; its wall clock is four times that."""
    compile_memory_mb: int = Field(default=1024, ge=32)
    """Memory of one compilation, in MiB."""
    compile_cache_mb: int = Field(default=256, ge=0)
    """Compiled programs that are kept for the next submission of the same source, in MiB, and half as much for a precompiled
    header of C++; 0 keeps none."""
    max_collect_mb: int = Field(default=16, ge=0)
    """Size of all files that one verdict brings back, in MiB; what does not fit is left out."""
    languages: dict[LanguageName, LanguageRules] = {}
    """Languages added to the built-in ones, or in place of them, as JSON:
    {"go": {"source": "a.go", "compile": ["go", "build", "-o", "a", "a.go"], "artifact": "a", "run": ["./a"]}}."""

    read_only_paths: list[Path] = []
    """Folders that programs can read besides the system's and Python's, such as that of a compiler in /opt; as JSON."""

    queue_capacity: int = Field(default=65536, ge=1)
    """Submissions that wait for a slot at most, over all requests."""
    max_estimated_wait_s: float = Field(default=1800.0, gt=0)
    """A native request that would wait longer before it starts, by the run times seen so far, is a 429."""
    max_queue_time_s: float = Field(default=30.0, gt=0)
    """Longest wait for a slot on the code-judge endpoints other than long-batch; native requests name a `deadline_s`.
    (MAX_QUEUE_WORK_LIFE_TIME)"""
    max_batch_items: int = Field(default=4096, ge=1)
    """Submissions in one request."""
    max_body_bytes: int = Field(default=64 * MIB, ge=1)
    """Size of one request."""
    request_memory_mb: int = Field(default=512, ge=1)
    """Bodies of all requests that are being answered, in MiB; one that does not fit is a 429, or waits (long-batch)."""
    reply_memory_mb: int = Field(default=512, ge=1)
    """Verdicts of all requests that are not sent yet, in MiB; beyond it outputs are left out, and flagged as truncated."""
    verdict_cache_mb: int = Field(default=64, ge=0)
    """Verdicts that are kept for a native client that sends the same id and content again, in MiB; 0 keeps none."""
    verdict_cache_s: float = Field(default=600.0, gt=0)
    """How long they are kept."""

    max_sessions: int = Field(default=16, ge=0)
    """Python sessions that are open at once; each has processes and up to its memory limit of its own. 0: none."""
    max_snapshots: int = Field(default=16, ge=2)
    """States of one session that a cell can start from; the oldest are dropped."""
    session_idle_s: float = Field(default=900.0, gt=0)
    """A session is closed when nothing was asked of it for so long."""

    drain_timeout_s: float = Field(default=20.0, ge=0)
    """How long what runs and waits may still take after SIGTERM or SIGINT, before it is cancelled; a second signal cancels at
    once."""
    exit_with_stdin: bool = False
    """Stop at once when standard input ends, so that a server dies with the process that holds the other end."""
    preloads: dict[PreloadName, list[str]] = {}
    """Sets of modules that warm interpreters hold besides `bare` (none), `sympy` and `sci` (numpy, sympy), as
    JSON: {"frames": ["numpy", "pandas"]}. The imports of a program choose the set; more sets take more memory."""
    work_dir: Path | None = None
    """Tier D: folder for the files of running programs; absent: the system's folder for temporary files. The other tiers keep
    them in memory or below the latter."""
    log_format: Literal["text", "json"] = "text"
    """Lines on stderr as text, or as one JSON object each."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least level of a line: at `info` there is one for each request that was judged."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments, then the environment, then code-judge's names in it."""
        named_by_code_judge = {
            field: os.environ[name]
            for name, fields in CODE_JUDGE_NAMES.items()
            if os.environ.get(name)
            for field in fields
        }
        return init_settings, env_settings, InitSettingsSource(settings_cls, named_by_code_judge)

    @model_validator(mode="after")
    def _check_address(self) -> "Settings":
        if not self.is_loopback and self.token is None:
            raise ValueError(
                f"host: `{self.host}` is not a loopback address, and there is no token. "
                "Set CODE_JUDGE_TOKEN, or listen on 127.0.0.1"
            )
        if self.token is not None:
            secret = self.token.get_secret_value()
            if not secret or not secret.isascii() or not secret.isprintable() or " " in secret:
                raise ValueError("token: it must be printable ASCII without spaces, as it travels in a header")
        return self

    @model_validator(mode="after")
    def _check_preloads(self) -> "Settings":
        preload_sets(self.preloads)
        return self

    @field_validator("read_only_paths")
    @classmethod
    def _check_paths(cls, paths: list[Path]) -> list[Path]:
        for path in paths:
            if not path.is_absolute() or not path.exists():
                raise ValueError(f"`{path}` must be the absolute path of something that is there")
        return paths

    @model_validator(mode="after")
    def _check_sizes(self) -> "Settings":
        if self.queue_capacity < self.max_batch_items:
            raise ValueError(
                f"queue_capacity: {self.queue_capacity} is less than max_batch_items, {self.max_batch_items}: "
                "such a batch could never be taken. Raise one or lower the other"
            )
        if self.request_memory_mb * MIB < self.max_body_bytes:
            raise ValueError(
                f"request_memory_mb: {self.request_memory_mb} MiB is less than max_body_bytes, {self.max_body_bytes}: "
                "such a body could never be taken. Raise one or lower the other"
            )
        for unit in ("cpu_time_s", "wall_time_s", "memory_mb"):
            default = getattr(self, f"default_{unit}")
            most = self.wall_time_limit_s if unit == "wall_time_s" else getattr(self, f"max_{unit}")
            if default is not None and default > most:
                raise ValueError(
                    f"default_{unit}: {default:g} is more than max_{unit}, {most:g}. Raise one or lower the other"
                )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)

    @property
    def slot_count(self) -> int:
        """Programs that compute at once: one more than cores, so that none waits for a slot that is between two programs."""
        return self.num_slots or len(os.sched_getaffinity(0)) + 1

    @property
    def spare_slot_count(self) -> int:
        """Slots more, for while others sleep."""
        return 2 * self.slot_count if self.spare_slots is None else self.spare_slots

    @property
    def total_slots(self) -> int:
        """Programs that the executor must be able to hold at once."""
        return self.slot_count + self.spare_slot_count

    @property
    def wall_time_limit_s(self) -> float:
        """Wall clock of one program at most."""
        return self.max_wall_time_s or 2 * self.max_cpu_time_s

    @property
    def max_limits(self) -> Limits:
        """What larger limits of a submission are lowered to."""
        return Limits(
            cpu_time_s=self.max_cpu_time_s,
            wall_time_s=self.wall_time_limit_s,
            memory_bytes=self.max_memory_mb * MIB,
            output_bytes=self.max_output_bytes,
            max_tasks=self.max_tasks,
            disk_bytes=self.max_disk_mb * MIB,
            compile_time_s=self.compile_time_s,
        )

    @property
    def default_limits(self) -> Limits:
        """The limits of a submission that names none."""
        named = {
            "cpu_time_s": self.default_cpu_time_s,
            "wall_time_s": self.default_wall_time_s,
            "memory_bytes": None if self.default_memory_mb is None else self.default_memory_mb * MIB,
        }
        return self.max_limits.model_copy(update={name: value for name, value in named.items() if value is not None})

    @property
    def preload_sets(self) -> dict[str, Sequence[str]]:
        """Modules of every set of warm interpreters."""
        return preload_sets(self.preloads)

    @property
    def limit_policy(self) -> LimitPolicy:
        """The two bounds of every limit."""
        return LimitPolicy(defaults=self.default_limits, maxima=self.max_limits)


def is_loopback(host: str) -> bool:
    """Tell whether a name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the names in the environment that look like settings and are none: misspelt, or of somebody else."""
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name.upper() not in known)
