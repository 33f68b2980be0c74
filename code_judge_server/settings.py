"""Every setting of the judge: on the command line as `--max-memory-mb 512`, in the environment as `CODE_JUDGE_MAX_MEMORY_MB`.

The command line wins over the environment, and both over the names of code-judge (`MAX_MEMORY` and its like), which are
honoured where they make sense here.
"""

import ipaddress
import os
from pathlib import Path

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from code_judge_server.schemas import IsolationTier, Limits

CODE_JUDGE_NAMES = {
    "MAX_EXECUTION_TIME": "max_cpu_time_s",
    "MAX_MEMORY": "max_memory_mb",
    "MAX_WORKERS": "num_slots",
    "MAX_STDOUT_ERROR_LENGTH": "max_reply_chars",
    "MAX_QUEUE_WORK_LIFE_TIME": "max_queue_time_s",
}
"""Environment names of code-judge, and the settings that they stand for."""

_MIB = 1024 * 1024


class Settings(BaseSettings):
    """Run untrusted programs on request and judge what they print."""

    model_config = SettingsConfigDict(
        env_prefix="CODE_JUDGE_",
        cli_kebab_case=True,
        cli_implicit_flags=True,
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
    """Bearer token that every request must carry; better in the environment (CODE_JUDGE_TOKEN) than in a command line."""
    require_isolation: IsolationTier = IsolationTier.B
    """Weakest isolation that the server starts with: A, B, C or D. D isolates nothing and is for loopback only."""
    num_slots: int = Field(default=0, ge=0)
    """Programs that run at once; 0 takes one per core. (MAX_WORKERS)"""
    max_cpu_time_s: float = Field(default=10.0, gt=0)
    """CPU time of one program. (MAX_EXECUTION_TIME)"""
    max_wall_time_s: float = Field(default=0.0, ge=0)
    """Wall clock of one program; 0 takes twice its CPU time, so that a busy machine fails no honest program."""
    max_memory_mb: int = Field(default=512, ge=32)
    """Resident memory of one program, in MiB. (MAX_MEMORY)"""
    max_output_bytes: int = Field(default=_MIB, ge=1)
    """Bytes that a program may write to stdout, and as many to stderr; it is killed at the next one."""
    max_reply_chars: int = Field(default=65536, ge=0)
    """Characters of stdout and of stderr in a reply; the rest is judged, but cut from it. (MAX_STDOUT_ERROR_LENGTH)"""
    max_tasks: int = Field(default=256, ge=1)
    """Processes and threads of one program."""
    max_file_mb: int = Field(default=64, ge=1)
    """Size of a file that a program writes, in MiB."""
    compile_time_s: float = Field(default=30.0, gt=0)
    """CPU time and wall clock of one compilation."""
    compile_memory_mb: int = Field(default=1024, ge=32)
    """Memory of one compilation, in MiB."""
    max_queue_time_s: float = Field(default=30.0, gt=0)
    """Longest wait for a slot on the code-judge endpoints other than long-batch; native requests name a `deadline_s`.
    (MAX_QUEUE_WORK_LIFE_TIME)"""
    queue_capacity: int = Field(default=16384, ge=1)
    """Submissions that wait for a slot at most, over all requests."""
    max_batch_items: int = Field(default=4096, ge=1)
    """Submissions in one request."""
    max_body_bytes: int = Field(default=64 * _MIB, ge=1)
    """Size of one request."""
    work_dir: Path | None = None
    """Folder for the files of running programs; absent: the system's folder for temporary files."""
    exit_with_stdin: bool = False
    """Stop when standard input ends, so that a server dies with the process that holds the other end."""

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
            field: os.environ[name] for name, field in CODE_JUDGE_NAMES.items() if os.environ.get(name)
        }
        return init_settings, env_settings, InitSettingsSource(settings_cls, named_by_code_judge)

    @model_validator(mode="after")
    def _check_address(self) -> "Settings":
        if not self.is_loopback and self.token is None:
            raise ValueError(
                f"host: `{self.host}` is not a loopback address, and there is no token. "
                "Set CODE_JUDGE_TOKEN, or listen on 127.0.0.1"
            )
        if self.queue_capacity < self.max_batch_items:
            raise ValueError(
                f"queue_capacity: {self.queue_capacity} is less than max_batch_items, {self.max_batch_items}: "
                "such a batch could never be taken. Raise one or lower the other"
            )
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def slot_count(self) -> int:
        """Programs that run at once."""
        return self.num_slots or len(os.sched_getaffinity(0))

    @property
    def max_limits(self) -> Limits:
        """The limits of a program that names none."""
        return Limits(
            cpu_time_s=self.max_cpu_time_s,
            wall_time_s=self.max_wall_time_s or 2 * self.max_cpu_time_s,
            memory_bytes=self.max_memory_mb * _MIB,
            output_bytes=self.max_output_bytes,
        )
