"""The subject of a check, and the findings that it prints."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from agentrl.config.load import LoadedConfig
from agentrl.config.schema.run import RunConfig
from agentrl.data.prompts import PromptDataset
from agentrl.tools.base import ToolConfig
from agentrl.types import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSubject:
    """A run that would start: its config, plugins and data."""

    loaded: LoadedConfig
    tools: list[ToolConfig]
    training: Sequence[PromptDataset] = ()
    """One for each stage; none where the data are not read."""
    validation: Sequence[Prompt] = ()
    prompt_is_invented: bool = False
    """The first prompt lacks columns that come with requests: code that fails on it may be in order."""

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.loaded.config


@dataclass(slots=True)
class CheckReport:
    """Findings of a check, printed at once; what refuses a run is raised as `ConfigError` or `ToolError` instead."""

    console: Console

    def note(self, line: str) -> None:
        """Print what was tried, and its result."""
        self.console.print(line, soft_wrap=True, markup=False, highlight=False)

    def warn(self, line: str) -> None:
        """Print something that is allowed and probably wrong."""
        self.note(f"warning: {line}")

    def not_checked(self, what: str) -> None:
        """Print something that was not checked."""
        self.note(f"not checked: {what}")
