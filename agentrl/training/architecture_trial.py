"""Trial of an architecture: packed training against transformers' own attention, on a small random model.

Architectures that the tests cover need no trial (`attention_support.TESTED`). Others may have their own attention, a position
bias, positions that they count themselves, or a state along the row: packed rows would be silently wrong.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AutoModelForCausalLM, PretrainedConfig

from agentrl.errors import ConfigError
from agentrl.training.attention.packed import packed_attention
from agentrl.training.packing.families import Family
from agentrl.training.packing.packing import pack_tokens
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.scoring.token_logprobs import score_tokens

_VOCABULARY = 64
_WIDTH_OF_A_HEAD = 64
_MOST_LAYERS = 4
_WINDOW = 8
_LENGTHS = (23, 16, 17)
_NUM_SHARED = 9
_TOLERANCE = 0.01
"""Nats. Wrong results differ by tenths and more, rounding by 0.001 at most."""


def require_packable(config: PretrainedConfig, where: str) -> None:
    """Raise ConfigError if packed log-probabilities differ from those of single sequences; `where` is config key and folder."""
    kind = config.model_type
    wrong = f"{where}: packed training of the architecture `{kind}`"
    way_out = "Use a model of a tested architecture, such as Qwen3 or Llama"
    try:
        difference = _largest_difference(_shrunk(config))
    except ConfigError as error:
        raise ConfigError(f"{where} ({kind}): {error}") from error
    except Exception as error:  # an architecture that cannot be tried raises anything
        message = " ".join(str(error).split())
        raise ConfigError(f"{wrong} could not be tried: {type(error).__name__}: {message[:200]}. {way_out}") from error
    if not difference <= _TOLERANCE:
        raise ConfigError(
            f"{wrong} is wrong: log-probabilities in a packed row differ by {difference:.2g} from those of single sequences. "
            f"{way_out}"
        )


@torch.random.fork_rng(devices=[])
def _largest_difference(config: PretrainedConfig) -> float:
    """Return the largest difference of packed log-probabilities from transformers' own."""
    attention = "agentrl_packed_trial"
    AttentionInterface.register(attention, packed_attention)
    packed, plain = (
        # A copy each, because transformers writes the attention into it.
        AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.float32, attn_implementation=name).eval()
        for name in (attention, "eager")
    )
    draws = torch.Generator().manual_seed(0)
    _randomise(packed, draws)
    plain.load_state_dict(packed.state_dict())
    examples = _examples(draws)
    families = [Family(members=(0, 1), num_shared=_NUM_SHARED), Family(members=(2,), num_shared=0)]
    with torch.no_grad():
        expected = torch.cat([_logprobs(plain, example) for example in examples])
        rows = (pack_tokens(examples), pack_tokens(examples, families))
        results = [score_tokens(packed, row, temperature=1.0).logprobs_N for row in rows]
    return max(float((logprobs - expected).abs().max()) for logprobs in results)


def _examples(draws: torch.Generator) -> list[TokenisedExample]:
    """Return sequences of random tokens; the first two share a prefix."""
    ids = [torch.randint(2, _VOCABULARY, (length,), generator=draws).tolist() for length in _LENGTHS]
    ids[1][:_NUM_SHARED] = ids[0][:_NUM_SHARED]
    masks = [[0] * _NUM_SHARED + [1] * (length - _NUM_SHARED) for length in _LENGTHS]
    return [TokenisedExample(token_ids=tokens, response_mask=mask) for tokens, mask in zip(ids, masks, strict=True)]


def _logprobs(model: Any, example: TokenisedExample) -> Tensor:
    ids = torch.tensor(example.token_ids)
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    logprobs = logits.float().log_softmax(-1).gather(1, ids[1:, None]).squeeze(1)
    return logprobs[torch.tensor(example.response_mask[1:], dtype=torch.bool)]


@torch.no_grad()
def _randomise(model: Any, draws: torch.Generator) -> None:
    """Draw weights large enough for every part of the model to influence its output."""
    for weight in model.parameters():
        drawn = torch.randn(weight.shape, generator=draws)
        if weight.ndim > 1:
            weight.copy_(drawn * 1.5 / weight.shape[-1] ** 0.5)
        else:
            weight.add_(0.1 * drawn)


def _shrunk(config: PretrainedConfig) -> PretrainedConfig:
    """Return the configuration with few layers, heads, experts and tokens, and a short window."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    sizes: dict[str, Any] = {"vocab_size": _VOCABULARY} | dict.fromkeys(
        ("pad_token_id", "bos_token_id", "eos_token_id"), 1
    )
    sizes |= dict.fromkeys(("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size"), 64)
    sizes |= {"n_inner": 64, "ffn_dim": 64, "sliding_window": _WINDOW}
    limits = {"num_experts": 8, "num_local_experts": 8, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2}
    limits |= {"topk_group": 1, "first_k_dense_replace": 1, "num_hidden_layers": _MOST_LAYERS}
    for name, size in (sizes | limits).items():
        present = getattr(text, name, None)
        if present is not None:
            setattr(text, name, min(size, present) if name in limits else size)
    for part in small.sub_configs:
        vision: Any = getattr(small, part, None)
        if vision is not text and getattr(vision, "num_hidden_layers", None):
            vision.num_hidden_layers = 1
    if kinds := getattr(config.get_text_config(), "layer_types", None):
        text.layer_types = [*dict.fromkeys(kinds), *kinds][: text.num_hidden_layers]
    num_heads, num_kv_heads = text.num_attention_heads, getattr(text, "num_key_value_heads", None)
    head_size = min(text.hidden_size // num_heads, _WIDTH_OF_A_HEAD)
    text.num_attention_heads, text.hidden_size = 4, 4 * head_size
    if num_kv_heads is not None:
        text.num_key_value_heads = 4 if num_kv_heads == num_heads else min(2, num_kv_heads)
    return small
