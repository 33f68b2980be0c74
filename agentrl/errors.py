"""The exception tree.

    AgentRLError
    ├── ConfigError            the user's input is wrong; nothing has started yet
    │   └── RowError           a row of a data file is; `data.on_bad_row: skip` leaves it out
    │       └── DataLayoutError  all rows of the file are probably wrong in the same way
    ├── ToolError              a tool cannot be built or breaks its contract; the run stops
    │   └── MisfitError        the worker that answers it does not take its arguments
    ├── DataError              a prompt's own data breaks a tool or the reward: counted, left out, never a reward
    │   └── UnexplainedError   a tool or the reward raised what nobody expected: taken for that if it comes again
    ├── RolloutError           the world failed under one trajectory: counted, retried, never a reward
    │   ├── JudgeUnavailableError
    │   ├── EngineError
    │   │   └── EngineDeadError
    │   └── WorkerDiedError
    ├── CheckpointError        a checkpoint could not be written or read; the ones before it still count
    │   └── DamagedCheckpointError  one that counts lacks a file, or a file is not what was written
    ├── DiskFullError          the disk of `run.dir` has no room left
    └── WorkerError            a worker raised something unexpected; ends with its traceback
        ├── CallFailedError    a method of an extra role did: the policy reads what
        ├── NoRoomError        the cluster has had no room for a process for too long
        └── GoBackError        what a process held is gone: the run goes on from its last checkpoint
            ├── ModelDiedError     it held a part of a model
            ├── PeerLostError      a rank of a model has lost the connection to another one
            └── ResultLostError    it held what has been made since, such as trajectories

A mistake of the *model* (bad JSON, unknown tool, a program that crashes) is none of these: it is a `ToolResult`.
Exceptions cross process borders, so each must survive pickling: one positional `message`, extras as attributes with
defaults.
"""

import errno

from agentrl.user_code import cause_of, described

UNDECODABLE = (ValueError, LookupError, TypeError)
"""What content that is cut off or overwritten raises when it is decoded, and its keys are looked up."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of an `OSError` where a disk, or somebody's share of it, is full."""


class AgentRLError(Exception):
    """Base of every error that agentrl raises on purpose."""


class ConfigError(AgentRLError):
    """The configuration is wrong: the message names the file, the full key and the way out."""


class RowError(ConfigError):
    """A row of a data file cannot be used: the message names the file, the row and the column."""


class DataLayoutError(RowError):
    """A row lacks a column, or the file is not what the config takes it for: other rows are probably wrong in the same way."""


class ToolError(AgentRLError):
    """A tool cannot be built, or its class does not follow the `Tool` protocol."""


class MisfitError(ToolError):
    """A worker's method does not take the arguments that a tool passes; nothing has been done."""


class DataError(AgentRLError):
    """The prompt's own data cannot be used by a tool or by the reward, however often it is tried."""


class UnexplainedError(DataError):
    """A tool or the reward raised something that is none of these; `cause` says what and where, without its words."""

    def __init__(self, message: str, *, cause: str = "") -> None:
        super().__init__(message)
        self.cause = cause

    @classmethod
    def of(cls, where: str, error: Exception) -> "UnexplainedError":
        """Return the error for what `where` raised: `ValueError at my_rewards.py:17`, and its words."""
        return cls(f"{where} raised {described(error)}", cause=cause_of(error))


class RolloutError(AgentRLError):
    """The infrastructure failed while a trajectory ran. It says nothing about the policy."""


class JudgeUnavailableError(RolloutError):
    """The code judge did not answer, or could not judge, within the time allowed."""


class EngineError(RolloutError):
    """An engine died or gave a reply that cannot be trained on."""


class EngineDeadError(EngineError):
    """An engine can answer nothing more: its process is gone, what computes in it has ended, or it hangs."""


class WorkerDiedError(RolloutError):
    """A worker's process is gone; the message names the worker."""


class CheckpointError(AgentRLError):
    """A checkpoint could not be written, or is not whole; the message names it."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint that counts lacks a file, or a file is not what was written there.

    `reason` says which file and why, without the way out.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason

    @classmethod
    def of(cls, url: str, file: str, error: BaseException, *, written_by: str = "") -> "DamagedCheckpointError":
        """Return the error for what a file raised, with the removal of the checkpoint as the way out.

        Args:
            url: the folder of the checkpoint, or of a part of it.
            file: its name in there.
            error: what came of reading it.
            written_by: the package of which another version may still read it, where that is possible.
        """
        # The first line will do: torch adds paragraphs of advice that do not help here.
        words, _, _ = str(error).partition("\n")
        raised = f"{type(error).__name__}: {words}" if words else type(error).__name__
        problem = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({raised})"
        other = f", or was written by another version of {written_by} (try that one first)" if written_by else ""
        reason = f"is damaged{other}: `{file}` {problem}"
        return cls(
            f"checkpoint {url} {reason}. Remove the whole folder of that step, and the run goes on from "
            "the one before it; where there is none, begin anew in another `run.dir`",
            reason=reason,
        )


class DiskFullError(AgentRLError):
    """The disk of the run's own folder has no room left, whichever process was to write there."""


class WorkerError(AgentRLError):
    """A worker raised something that is nobody's expected failure; the message names it and ends with its traceback."""


class CallFailedError(WorkerError):
    """A method of an extra role's class raised; the message is what, in one line, without names of ours."""


class NotBuiltError(WorkerError):
    """A worker's constructor raised, at its start or when it was started again; the message names the worker."""


class NoRoomError(WorkerError):
    """The cluster has had no room for a process for too long; the message says what is missing."""


class GoBackError(WorkerError):
    """What a process held is gone with it or its node, so that the run must go on from its last checkpoint."""


class ModelDiedError(GoBackError):
    """A process that holds a part of a model is gone, and with it the group that it belonged to; the message names it."""


class PeerLostError(GoBackError):
    """A rank has lost the connection to another one: its process or its node is gone, or the network between them."""


class ResultLostError(GoBackError):
    """What a worker made, such as trajectories, is gone with the node that held it."""
