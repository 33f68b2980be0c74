"""A process that writes a checkpoint and is killed before its N-th operation on files; its argument is an empty folder.

For N = 1, 2, ... it forks a child, which has written the checkpoint of step 1 and begins that of step 2; Python tells of each
operation on a file (an audit hook), and at the N-th the child sends itself SIGKILL. It prints one line for each child: how it
ended, and which checkpoints count afterwards. It ends when a child got through.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch
import torch._dynamo  # the first use of an optimiser loads it, in every child if not here
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from torch.distributed.checkpoint.state_dict_loader import load

from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.store import CheckpointStore
from agentrl.training.checkpoint import CheckpointWriter
from agentrl.training.parallel import open_store

WATCHED = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir"}


def write(store: CheckpointStore, step: int) -> None:
    """Write all of a checkpoint, as a run with one rank does."""
    model = nn.Linear(4, 4)
    nn.init.constant_(model.weight, step)
    writer = CheckpointWriter()
    writer.begin(f"{store.begin(step)}/actor", model, torch.optim.AdamW(model.parameters()))
    writer.wait()
    store.put(step, "pass_rates.json", b"{}")
    store.commit(RunState(step=step))
    store.prune(keep_last=1, keep_best=0)


def child(folder: Path, kill_at: int) -> None:
    """Be killed at that operation within `folder`, in whatever thread it happens."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=open_store("127.0.0.1"), rank=0, world_size=1)
    store, operations = CheckpointStore(str(folder)), 0
    write(store, 1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal operations
        if event in WATCHED and str(arguments[0]).startswith(str(folder)):
            operations += 1
            if operations == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    write(store, 2)


def main() -> None:
    """Kill one child after the other."""
    for number in range(1, 1000):
        folder = Path(sys.argv[1]) / str(number)
        pid = os.fork()
        if pid == 0:
            child(folder, number)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        store = CheckpointStore(str(folder))
        whole = [state.step for state in store.states()]
        values = [_value(store, step) for step in whole]
        store.clear_leftovers()
        left = sorted(path.name for path in folder.iterdir())
        print(json.dumps({"code": code, "counts": whole, "weights": values, "left": left}), flush=True)
        if code != -signal.SIGKILL:
            return


def _value(store: CheckpointStore, step: int) -> float:
    """Return the weight that a checkpoint holds."""
    weights = {"model": {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}}
    reader = FsspecReader(f"{store.url_of(step)}/actor")
    load(weights, storage_reader=reader, no_dist=True)
    return weights["model"]["weight"].mean().item()


if __name__ == "__main__":
    main()
