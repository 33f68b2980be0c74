"""Scoring of trajectories by packed forward passes, on every rank in step.

Letters in shapes: N scored tokens of a packed row.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import PackedTokens, empty_tokens, fill_up, plan_rows
from agentrl.training.parallel import Parallel
from agentrl.types import Trajectory


@torch.no_grad()
def score_trajectories(
    score: Callable[[PackedTokens], Tensor],
    trajectories: Sequence[Trajectory],
    parallel: Parallel,
    packing: Packing,
) -> list[NDArray[np.float32]]:
    """Return the `score` of the scored tokens of each trajectory, in their order.

    Args:
        score: function of a packed row on the device of `parallel` that returns `[N]`.
        trajectories: this rank's trajectories; with none it computes empty rows while others have work.
        parallel: the ranks; all of them must call this.
        packing: settings of packing.
    """
    plan = plan_rows(trajectories, packing)
    [num_rows] = parallel.max([len(plan.rows)])
    rows = fill_up([plan.pack(row, trajectories) for row in range(len(plan.rows))], empty_tokens(), int(num_rows))
    scores_N = [score(row.to(parallel.device, parallel.sequence)).float().cpu() for row in rows]
    arrays: dict[int, NDArray[np.float32]] = {}
    for members, row_N in zip(plan.members, scores_N, strict=False):  # the rest are empty rows
        counts = [sum(trajectories[i].response_mask[1:]) for i in members]
        arrays |= {i: part.numpy() for i, part in zip(members, row_N.split(counts), strict=True)}
    return [arrays[i] for i in range(len(trajectories))]
