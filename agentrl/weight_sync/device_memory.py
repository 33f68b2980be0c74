"""Memory of a GPU that torch keeps for later, and that other processes on it cannot have meanwhile."""

import torch


def give_back_cached_memory() -> None:
    """Give it back, if there is a GPU; what is in use stays."""
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()  # what other processes had opened and have closed
        torch.cuda.empty_cache()
