"""GPUs of this machine, counted without loading Ray before they are asked for."""

from typing import Any


def gpus_here() -> int:
    """Return how many GPUs, of any maker, a Ray that is started on this machine would declare; nothing is started."""
    # Here and not above: commands that start no Ray import this file.
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager: Any = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids()
    num_gpus = manager.get_current_node_num_accelerators()
    return num_gpus if visible is None else min(num_gpus, len(visible))
