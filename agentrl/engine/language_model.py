"""The model of the embedded engine: loading it, running it over the KV cache, and replacing its weights in place."""

import logging
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from agentrl.config.schema import ModelSection
from agentrl.engine.kv_cache import ATTENTION_NAME, Chunk, KVCache, Step, attend
from agentrl.engine.weight_check import check_weights
from agentrl.errors import ConfigError, EngineError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.shared_memory import read_tensors

logger = logging.getLogger(__name__)


class LanguageModel:
    """A Hugging Face causal LM with full attention, and the keys and values of its sequences."""

    def __init__(self, section: ModelSection, *, num_rows: int, max_tokens: int) -> None:
        """Load the model and try it on two tokens.

        Raises:
            ConfigError: the folder holds no such model, or one whose attention the engine cannot replace.
        """
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, attend)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                section.path, dtype=getattr(torch, section.dtype), attn_implementation=ATTENTION_NAME
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"`model.path`: cannot load a causal LM from {section.path}: {error}") from error
        self._model = cast(torch.nn.Module, model)  # transformers wraps `to` in a way that type checkers misread
        self._model.requires_grad_(False).eval().to(self.device)
        self.config = model.config.get_text_config()
        eos = model.generation_config.eos_token_id if model.generation_config else None
        self.eos_token_ids = frozenset([eos] if isinstance(eos, int) else eos or [])
        self.cache = KVCache(num_rows=num_rows, max_tokens=max_tokens)
        self._shapes = {name: p.shape for name, p in self._model.named_parameters()}
        self._asleep: set[str] = set()
        self._weights_dropped = False
        self._try_out()

    @property
    def is_awake(self) -> bool:
        """Whether weights and cache are there, so that requests can run."""
        return not self._asleep and not self._weights_dropped

    def extend(
        self, token_ids: np.ndarray, single_rows: Sequence[int], lengths: Sequence[int], chunks: Sequence[Chunk]
    ) -> torch.Tensor:
        """Run the new tokens of a step.

        Args:
            token_ids: [rows, max tokens], the tokens of every row.
            single_rows: rows with one new token, their last.
            lengths: number of tokens of each of those.
            chunks: rows with several new tokens.

        Returns:
            [len(single_rows) + len(chunks), vocabulary], the logits behind the last new token of each.
        """
        step = Step(self.cache, single_rows=single_rows, lengths=lengths, chunks=chunks, device=self.device)
        singles = token_ids[single_rows, np.asarray(lengths, dtype=np.int64) - 1]
        packed = np.concatenate([singles, *(token_ids[c.row, c.start : c.stop] for c in chunks)])
        ends = np.cumsum([1] * len(single_rows) + [c.stop - c.start for c in chunks]) - 1
        output = self._model(
            input_ids=torch.from_numpy(packed).to(self.device)[None],
            position_ids=step.positions_N[None],
            logits_to_keep=torch.from_numpy(ends).to(self.device),
            use_cache=False,
            step=step,
        )
        return output.logits[0]

    def load_weights(self, source: WeightSource) -> None:
        """Copy new weights over the old ones, after checking that all of them are there and fit.

        Raises:
            EngineError: a name is missing or unknown, a shape differs, or the publisher is gone; no weight has changed
                then.
        """
        if "weights" in self._asleep:
            raise EngineError("engine: the weights sleep: `wake(('weights',))` before `load_weights`")
        own = self._model.state_dict(keep_vars=True)
        check_weights(own, source)
        for name, tensor in read_tensors(source):
            self._weights_dropped = True  # should the source break off half-way, nothing runs on a mixture
            own[name].copy_(tensor)
        self._weights_dropped = False

    def sleep(self, level: int) -> None:
        """Free the cache, and move the weights to the host (1) or drop them (2)."""
        self.cache.drop()
        self._asleep = {"weights", "kv_cache"}
        if level == 1:
            self._model.to("cpu")
            return
        self._weights_dropped = True
        for parameter in self._model.parameters():
            parameter.data = parameter.data.new_empty(0)

    def wake(self, tags: tuple[str, ...]) -> None:
        """Take memory again; the cache takes it with the next step. Dropped weights come with `load_weights`."""
        if "weights" in tags and "weights" in self._asleep:
            self._model.to(self.device)
            if self._weights_dropped:
                for name, parameter in self._model.named_parameters():
                    parameter.data = parameter.data.new_empty(self._shapes[name])
        self._asleep -= set(tags)

    def _try_out(self) -> None:
        ids = np.zeros((1, 2), dtype=np.int32)
        with torch.inference_mode():
            self.extend(ids, [], [], [Chunk(row=0, start=0, stop=2)])
        if len(self.cache.keys) != self.config.num_hidden_layers:
            raise ConfigError(
                f"`model.path`: only {len(self.cache.keys)} of {self.config.num_hidden_layers} layers of"
                f" {type(self._model).__name__} use attention that the embedded engine can replace: use another engine"
            )
