"""The model of the embedded engine, loaded from a folder and run over the KV cache."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.engine.embedded.kv_cache import ATTENTION_NAME, Chunk, KVCache, Step, attend
from agentrl.engine.embedded.resident_weights import ResidentWeights
from agentrl.errors import ConfigError
from agentrl.models.attention_support import num_positions
from agentrl.models.loading import load_causal_lm

if TYPE_CHECKING:
    from agentrl.config.schema.run import ModelSection


class LanguageModel:
    """A Hugging Face causal LM with its KV cache."""

    def __init__(self, section: "ModelSection", *, num_rows: int, max_tokens: int) -> None:
        """Load the model and try it on two tokens; `max_tokens` is the longest sequence of the engine.

        Raises:
            ConfigError: the folder holds no complete causal LM, or one whose attention the engine cannot replace.
        """
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attend)
        # cuDNN plans its attention for every new length, which takes 0.4 s: longer than a decoding step.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = getattr(torch, section.dtype)
        model: Any = load_causal_lm(section.path, key="model.path", dtype=dtype, attention=ATTENTION_NAME)
        self._model = model.requires_grad_(False).eval().to(self.device)
        self.weights = ResidentWeights(self._model, self.device)
        self.config = model.config.get_text_config()
        self.max_tokens: int = min(max_tokens, num_positions(self.config.to_dict()) or max_tokens)
        self.cache = KVCache(num_rows=num_rows, max_tokens=self.max_tokens)
        with torch.inference_mode():
            self.extend(np.zeros((1, 2), dtype=np.int32), [Chunk(0, 0, 2)])
        if (replaced := len(self.cache.layers)) != (wanted := self.config.num_hidden_layers):
            problem = f"the embedded engine can replace the attention of {replaced} of {wanted} layers only"
            raise ConfigError(f"`model.path`: {section.path}: {problem}. Use another engine")

    def extend(self, token_ids: np.ndarray, chunks: Sequence[Chunk]) -> torch.Tensor:
        """Run the new tokens of a step.

        Args:
            token_ids: [rows, max tokens], the tokens of every row.
            chunks: the new tokens; chunks with a single one come first.

        Returns:
            [len(chunks), vocabulary], the logits after the last token of each.
        """
        step = Step(self.cache, chunks, self.device)
        packed = np.concatenate([token_ids[c.row, c.start : c.stop] for c in chunks])
        ends = np.cumsum([len(chunk) for chunk in chunks]) - 1
        output = self._model(
            input_ids=torch.from_numpy(packed).to(self.device)[None],
            position_ids=step.positions_N[None],
            logits_to_keep=torch.from_numpy(ends).to(self.device),
            use_cache=False,
            step=step,
        )
        return output.logits[0]
