"""Detection of CPUs that compute bfloat16 faster than float32."""

import torch


def cpu_bfloat16() -> str | None:
    """Return the name of this CPU's bfloat16 matrix instructions; None if it has none."""
    if torch.cpu._is_amx_tile_supported():
        return "AMX"
    if torch.cpu._is_avx512_bf16_supported():
        return "AVX512-BF16"
    return None
