"""The exception tree.

    AgentRLError
    ├── ConfigError            the user's input is wrong; nothing has started yet
    │   └── RowError           a row of a data file is wrong; `data.on_bad_row: skip` leaves it out
    │       └── DataLayoutError  all rows of the file are probably wrong in the same way
    ├── ToolError              a tool cannot be built or breaks its contract; the run stops
    │   ├── ArgumentMismatchError        the worker that answers it does not take its arguments
    │   └── ToolChangedError             an MCP server has other tools than at the start of the run
    ├── DataError              a prompt's own data breaks a tool or the reward: counted, left out, never a reward
    │   └── UnexplainedError   a tool or the reward raised an unexpected exception; a `DataError` if a retry raises it too
    ├── RolloutError           the infrastructure failed under one trajectory: counted, retried, never a reward
    │   ├── JudgeUnavailableError
    │   ├── EngineError
    │   │   └── EngineDeadError
    │   └── WorkerDiedError
    ├── CheckpointError        a checkpoint could not be written or read; earlier ones stay valid
    │   └── DamagedCheckpointError  a committed checkpoint lacks a file, or a file was changed
    ├── DiskFullError          the disk of `run.dir` is full
    └── WorkerError            a worker raised something unexpected; ends with its traceback
        ├── CallFailedError    a method of an extra role raised; the policy reads the message
        ├── InsufficientResourcesError        the cluster has had no room for a process for too long
        └── RestoreRequiredError        what a process held is gone: the run goes on from its last checkpoint
            ├── ModelDiedError     a process that held a part of a model
            ├── PeerLostError      a rank lost the connection to another rank
            └── ResultLostError    results such as trajectories

A mistake of the *policy* (bad JSON, unknown tool, a program that crashes) is none of these: it is a `ToolResult`.
Exceptions must pickle, since they cross processes: one positional `message`, extras as keywords with defaults.
"""

import errno

from agentrl.user_code import cause_of, described

UNDECODABLE = (ValueError, LookupError, TypeError)
"""Exceptions that truncated or overwritten content raises when it is decoded and its keys are read."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""`errno` of an `OSError` for a full disk or quota."""


class AgentRLError(Exception):
    """Base of every error that agentrl raises on purpose."""


class ConfigError(AgentRLError):
    """The configuration is wrong: the message names the file, the full key and the way out."""


class RowError(ConfigError):
    """A row of a data file cannot be used: the message names the file, the row and the column."""


class DataLayoutError(RowError):
    """A row lacks a column, or the file has another format than configured: other rows probably have the same fault."""


class ToolError(AgentRLError):
    """A tool cannot be built, or its class does not follow the `Tool` protocol."""


class ArgumentMismatchError(ToolError):
    """A worker's method does not take the arguments that a tool passes; it was not called."""


class ToolChangedError(ToolError):
    """A server was restarted, and its tools differ from those that the policy was shown."""


class DataError(AgentRLError):
    """The prompt's own data cannot be used by a tool or by the reward, however often it is tried."""


class UnexplainedError(DataError):
    """A tool or the reward raised an exception of no known class; `cause` is its class and place, without its text."""

    def __init__(self, message: str, *, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause

    @classmethod
    def of(cls, where: str, error: Exception) -> "UnexplainedError":
        """Return the error for an exception that `where` raised; `cause` is `ValueError at my_rewards.py:17`."""
        return cls(f"{where} raised {described(error)}", cause=cause_of(error))


class RolloutError(AgentRLError):
    """The infrastructure failed while a trajectory ran. It says nothing about the policy."""


class JudgeUnavailableError(RolloutError):
    """The code judge did not answer, or could not judge, within the time allowed."""


class EngineError(RolloutError):
    """An engine died or gave a reply that cannot be trained on."""


class EngineDeadError(EngineError):
    """An engine cannot answer any more: its process or its model thread has ended, or it hangs."""


class WorkerDiedError(RolloutError):
    """A worker's process is gone; the message names the worker."""


class CheckpointError(AgentRLError):
    """A checkpoint could not be written, or is not whole; the message names it."""


class DamagedCheckpointError(CheckpointError):
    """A committed checkpoint lacks a file, or a file was changed."""

    @classmethod
    def of(cls, url: str, file: str, error: BaseException, *, written_by: str = "") -> "DamagedCheckpointError":
        """Return the error for a file that could not be read; the way out is to remove the checkpoint.

        Args:
            url: the folder of the checkpoint, or of a part of it.
            file: its name in that folder.
            error: the exception of reading it.
            written_by: package of which another version may still read the file.
        """
        # Only the first line: torch adds paragraphs of advice that do not help here.
        words, _, _ = str(error).partition("\n")
        raised = f"{type(error).__name__}: {words}" if words else type(error).__name__
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({raised})"
        other = f", or was written by another version of {written_by} (try that one first)" if written_by else ""
        return cls(
            f"checkpoint {url} is damaged{other}: `{file}` {problem}. Remove the whole folder of that step, and the run goes "
            "on from the one before it; if there is none, start in another `run.dir`"
        )


class DiskFullError(AgentRLError):
    """The disk of the run's own folder is full."""


class WorkerError(AgentRLError):
    """A worker raised an unexpected exception; the message names the worker and ends with its traceback."""


class CallFailedError(WorkerError):
    """A method of an extra role's class raised; the message is the exception in one line, without agentrl's names."""


class NotBuiltError(WorkerError):
    """A worker's constructor raised, at its start or at a restart; the message names the worker."""


class InsufficientResourcesError(WorkerError):
    """The cluster has had no room for a process for too long; the message says what is missing."""


class RestoreRequiredError(WorkerError):
    """State was lost with a process or its node, so the run must go on from its last checkpoint."""


class ModelDiedError(RestoreRequiredError):
    """A process that holds a part of a model is gone, and with it its process group; the message names the process."""


class PeerLostError(RestoreRequiredError):
    """A rank lost the connection to another rank: its process, its node or the network failed."""


class ResultLostError(RestoreRequiredError):
    """Results of a worker, such as trajectories, were lost with the node that held them."""
