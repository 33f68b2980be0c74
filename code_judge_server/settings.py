"""Every setting of the judge: on the command line as `--max-memory-mb 512`, in the environment as `CODE_JUDGE_MAX_MEMORY_MB`.

The command line wins over the environment, and both win over code-judge's names (such as `MAX_MEMORY`), which are read where
they make sense here.
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
    ),  # there it is a wall clock, which CPU time exceeds only with threads
    "MAX_MEMORY": ("max_memory_mb",),
    "MAX_WORKERS": ("num_slots",),
    "MAX_STDOUT_ERROR_LENGTH": ("max_reply_chars",),
    "MAX_QUEUE_WORK_LIFE_TIME": ("max_queue_time_s",),
}
"""Environment names of code-judge, and the settings they set."""

MIB = 1024 * 1024
"""Bytes in a unit of settings named `_mb`."""


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
    """Port to listen on; 0 takes a free one. The line `listening on http://ADDRESS:PORT` on stdout names it."""
    token: SecretStr | None = None
    """Bearer token that every request must carry, except for probes: /ping, /v1/ping, /v1/ready. Better set in the environment
    (CODE_JUDGE_TOKEN) than on a command line."""
    require_isolation: IsolationTier = IsolationTier.B
    """Weakest isolation that the server accepts: A, B, C or D. D isolates nothing and is for loopback only."""
    use_isolation: IsolationTier | None = None
    """Isolation tier to use, for tests and comparisons; absent: the best that this machine gives."""

    num_slots: int = Field(default=0, ge=0)
    """Programs that compute at once; 0 takes one more than cores. (MAX_WORKERS)"""
    spare_slots: int | None = Field(default=None, ge=0)
    """Additional slots, used only while programs in others sleep; absent: two per slot."""

    default_cpu_time_s: float | None = Field(default=None, gt=0)
    """CPU time of a program whose submission names none; absent: the maximum."""
    max_cpu_time_s: float = Field(default=10.0, gt=0)
    """Most CPU time of one program; larger limits are lowered to it. (MAX_EXECUTION_TIME)"""
    default_wall_time_s: float | None = Field(default=None, gt=0)
    """Wall clock of a program whose submission names none; absent: the maximum."""
    max_wall_time_s: float = Field(default=0.0, ge=0)
    """Most wall-clock time of one program; 0 takes twice the CPU time, so that a busy machine fails no honest program.
    (MAX_EXECUTION_TIME)"""
    default_memory_mb: int | None = Field(default=None, ge=32)
    """Memory of a program whose submission names none, in MiB; absent: the maximum."""
    max_memory_mb: int = Field(default=512, ge=32)
    """Most memory of one program, in MiB. (MAX_MEMORY)"""
    max_output_bytes: int = Field(default=MIB, ge=1)
    """Bytes that a program may write to stdout, and as many to stderr; a program that writes more is killed."""
    max_reply_chars: int = Field(default=65536, ge=0)
    """Characters of stdout and of stderr in a reply; the whole output is judged. (MAX_STDOUT_ERROR_LENGTH)"""
    max_tasks: int = Field(default=256, ge=1)
    """Processes and threads of one program."""
    max_disk_mb: int = Field(default=64, ge=1)
    """Files that a program writes, in MiB."""

    compile_time_s: float = Field(default=30.0, gt=0)
    """CPU time of one compilation; its wall clock is four times that."""
    compile_memory_mb: int = Field(default=1024, ge=32)
    """Memory of one compilation, in MiB."""
    compile_cache_mb: int = Field(default=256, ge=0)
    """Cache of compiled programs for later submissions of the same source, in MiB, and half as much for precompiled headers of
    C++; 0 keeps none."""
    max_collect_mb: int = Field(default=16, ge=0)
    """Size of all files that one verdict brings back, in MiB; files beyond it are left out."""
    languages: dict[LanguageName, LanguageRules] = {}
    """Languages that extend or replace the built-in ones, as JSON:
    {"go": {"source": "a.go", "compile": ["go", "build", "-o", "a", "a.go"], "artifact": "a", "run": ["./a"]}}."""

    read_only_paths: list[Path] = []
    """Folders that programs can read besides the system's and Python's, such as a compiler's in /opt; as JSON."""

    queue_capacity: int = Field(default=65536, ge=1)
    """Most submissions that wait for a slot, over all requests."""
    max_estimated_wait_s: float = Field(default=1800.0, gt=0)
    """Native requests whose estimated wait, from past run times, is longer get a 429."""
    max_queue_time_s: float = Field(default=30.0, gt=0)
    """Longest wait for a slot on the code-judge endpoints other than long-batch; native requests have `deadline_s` instead.
    (MAX_QUEUE_WORK_LIFE_TIME)"""
    max_batch_items: int = Field(default=4096, ge=1)
    """Most submissions in one request."""
    max_body_bytes: int = Field(default=64 * MIB, ge=1)
    """Largest body of one request."""
    request_memory_mb: int = Field(default=512, ge=1)
    """Bodies of all requests that are being answered, in MiB; a body beyond it gets a 429, or waits (long-batch)."""
    reply_memory_mb: int = Field(default=512, ge=1)
    """Verdicts that are not sent yet, over all requests, in MiB; beyond it outputs are left out and flagged as truncated."""
    verdict_cache_mb: int = Field(default=64, ge=0)
    """Verdicts kept for native clients that send the same id and content again, in MiB; 0 keeps none."""
    verdict_cache_s: float = Field(default=600.0, gt=0)
    """Time for which verdicts are kept."""

    max_sessions: int = Field(default=16, ge=0)
    """Python sessions open at once; each has its own processes and memory, up to its limit. 0: none."""
    max_snapshots: int = Field(default=16, ge=2)
    """States of one session that a cell can start from; the oldest are dropped."""
    session_idle_s: float = Field(default=900.0, gt=0)
    """Time without requests after which a session is closed."""

    drain_timeout_s: float = Field(default=20.0, ge=0)
    """Time for running and waiting submissions after SIGTERM or SIGINT, before they are cancelled; a second signal cancels
    them at once."""
    exit_with_stdin: bool = False
    """Stop at once when standard input ends, so that the server dies with its parent process."""
    preloads: dict[PreloadName, list[str]] = {}
    """Module sets of warm interpreters besides `bare` (none), `sympy` and `sci` (numpy, sympy), as
    JSON: {"frames": ["numpy", "pandas"]}. A program's imports choose the set; more sets take more memory."""
    fast_path: bool = True
    """Start programs by compiled parts, from a snapshot of the warm interpreter, and hide its frames from them; off: by plain
    forks, a third slower, whose tracebacks and stacks show frames of the judge. Without a C compiler the compiled parts are
    off."""
    work_dir: Path | None = None
    """Tier D: folder for the files of running programs; absent: the system's folder for temporary files. The other tiers keep
    them in memory or below the latter."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines on stderr: text, or one JSON object each."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level of log lines; `info` has one line for each judged request."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the command line, then the environment, then code-judge's environment names."""
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
                raise ValueError(f"`{path}` must be the absolute path of an existing file or folder")
        return paths

    @model_validator(mode="after")
    def _check_sizes(self) -> "Settings":
        if self.queue_capacity < self.max_batch_items:
            raise ValueError(
                f"queue_capacity: {self.queue_capacity} is less than max_batch_items, {self.max_batch_items}: "
                "such a batch could never be accepted. Raise one or lower the other"
            )
        if self.request_memory_mb * MIB < self.max_body_bytes:
            raise ValueError(
                f"request_memory_mb: {self.request_memory_mb} MiB is less than max_body_bytes, {self.max_body_bytes}: "
                "such a body could never be accepted. Raise one or lower the other"
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
        """True if only this machine can reach the address."""
        return is_loopback(self.host)

    @property
    def slot_count(self) -> int:
        """Programs that compute at once: by default one more than cores, so that no core idles between two programs."""
        return self.num_slots or len(os.sched_getaffinity(0)) + 1

    @property
    def spare_slot_count(self) -> int:
        """Additional slots, used while programs in others sleep."""
        return 2 * self.slot_count if self.spare_slots is None else self.spare_slots

    @property
    def total_slots(self) -> int:
        """Programs that the executor must be able to hold at once."""
        return self.slot_count + self.spare_slot_count

    @property
    def wall_time_limit_s(self) -> float:
        """Most wall-clock time of one program."""
        return self.max_wall_time_s or 2 * self.max_cpu_time_s

    @property
    def max_limits(self) -> Limits:
        """Maxima to which larger limits of a submission are lowered."""
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
        """The defaults and maxima of every limit."""
        return LimitPolicy(defaults=self.default_limits, maxima=self.max_limits)


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's own."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Return environment names that look like settings but are none."""
    known = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    return sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name.upper() not in known)
