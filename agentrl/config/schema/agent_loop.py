"""The section `agent_loop`: environments, and agents that play the episodes."""

from typing import Any, Literal

from pydantic import Field

from agentrl.config.schema.fields import Section


class AgentSection(Section):
    """An agent written elsewhere, which calls the policy as a server of OpenAI or Anthropic; see docs/agents.md."""

    callable: str | None = None
    """Import path of a function `fn(task)`, sync or async, that plays one episode inside the agent-loop worker."""
    command: list[str] = []
    """Program and arguments that play one episode as a process, in a copy of the config's folder with its Python files;
    `{prompt}` stands for the text of the last message.
    """
    history: Literal["continue", "exact"] = "continue"
    """`continue` goes on from the sampled tokens when the agent returns the policy's turns; `exact` does so only where the
    template renders the agent's messages to the same tokens, and starts another row elsewhere.
    """
    rows: Literal["merged", "independent"] = "merged"
    """`merged`: calls that continue one dialogue are one row of training; `independent`: every call is a row of its own."""
    continue_by_id: bool = False
    """Take a message that contains the id of a call as the policy's turn, too: for agents that send calls back as text."""

    @property
    def is_set(self) -> bool:
        """True if an agent plays the episodes."""
        return self.callable is not None or bool(self.command)

    @property
    def label(self) -> str:
        """Name in messages."""
        return self.callable or " ".join(self.command)


class AgentLoopSection(Section):
    """Environments and agents: what takes part in an episode besides policy and tools."""

    environment: str | None = None
    """Import path of a class that answers turns without a tool call as the user (docs/environments.md); absent: they end the
    episode.
    """
    environment_config: dict[str, Any] = {}
    """Passed to the class's constructor as plain data."""
    agent: AgentSection = Field(default_factory=AgentSection)
    """An agent that plays the episodes."""
