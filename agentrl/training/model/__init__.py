"""Models that are trained: decoders, scalar heads, LoRA, sharded loading."""
