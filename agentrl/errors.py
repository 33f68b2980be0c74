"""The exception tree.

    AgentRLError
    ├── ConfigError            the user's input is wrong; nothing has started yet
    ├── ToolError              a tool cannot be built or breaks its contract; the run stops
    ├── RolloutError           the world failed under one trajectory: counted, retried, never a reward
    │   ├── JudgeUnavailableError
    │   ├── EngineError
    │   └── WorkerDiedError
    └── WorkerError            a worker raised something unexpected; ends with its traceback

A mistake of the *model* (bad JSON, unknown tool, a program that crashes) is none of these: it is a `ToolResult`.
Exceptions cross process borders, so each must survive pickling: one positional `message`, extras as attributes with
defaults.
"""


class AgentRLError(Exception):
    """Base of every error that agentrl raises on purpose."""


class ConfigError(AgentRLError):
    """The configuration is wrong: the message names the file, the full key and the way out."""


class ToolError(AgentRLError):
    """A tool cannot be built, or its class does not follow the `Tool` protocol."""


class RolloutError(AgentRLError):
    """The infrastructure failed while a trajectory ran. It says nothing about the policy."""


class JudgeUnavailableError(RolloutError):
    """The code judge did not answer, or could not judge, within the time allowed."""


class EngineError(RolloutError):
    """An engine died or gave a reply that cannot be trained on."""


class WorkerDiedError(RolloutError):
    """A worker's process is gone; the message names the worker."""


class WorkerError(AgentRLError):
    """A worker raised something that is nobody's expected failure; the message names it and ends with its traceback."""
