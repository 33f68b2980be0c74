"""GPU memory that torch caches, and that other processes cannot use meanwhile."""

import torch


def release_cached_memory() -> None:
    """Release it, if there is a GPU; memory in use stays."""
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()  # memory that other processes had opened and have closed
        torch.cuda.empty_cache()
