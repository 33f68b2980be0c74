"""GPUs of this machine, as Ray counts them."""

from typing import Any


def gpus_here() -> int:
    """Return the number of GPUs, of any maker, that Ray would declare on this machine; nothing is started."""
    # Imported here: commands that start no Ray import this file. No public call counts GPUs before `ray.init`.
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager: Any = get_accelerator_manager_for_resource("GPU")
    visible = manager.get_current_process_visible_accelerator_ids()
    num_gpus = manager.get_current_node_num_accelerators()
    return num_gpus if visible is None else min(num_gpus, len(visible))
