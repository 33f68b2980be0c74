"""Tiny configurations of all architectures that packed training is tested with."""

from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from tests.training.training_cases import SIZES, VOCABULARY

WINDOW = 12
"""Sliding window, shorter than the sequences of the tests."""

_COMMON: dict[str, Any] = SIZES | {"num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
_GPT: dict[str, Any] = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256}
_GPT |= {"bos_token_id": 1, "eos_token_id": 1, "initializer_range": 0.2}
_LATENT: dict[str, Any] = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
_LATENT |= {"v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
_LATENT |= {"moe_intermediate_size": 16, "first_k_dense_replace": 1, "num_key_value_heads": 4}
_WINDOWS: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}

_PLAIN = (
    *("apertus", "arcee", "cohere", "ernie4_5", "gemma", "gpt_neox", "granite", "llama", "olmo"),
    *("olmo2", "phi", "qwen2", "seed_oss", "smollm3"),
)

_SETTINGS: dict[str, dict[str, Any]] = dict.fromkeys(_PLAIN, _COMMON) | {
    "cohere2": _COMMON | _WINDOWS | {"head_dim": 8},
    "deepseek_v2": _COMMON | _LATENT | {"topk_method": "greedy", "head_dim": 4},
    "deepseek_v3": _COMMON | _LATENT | {"n_shared_experts": 1, "head_dim": 4},
    "ernie4_5_moe": _COMMON
    | {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16, "moe_layer_start_index": 1},
    "exaone4": _COMMON | _WINDOWS,
    "gemma2": _COMMON | _WINDOWS | {"head_dim": 8, "attn_logit_softcapping": None, "final_logit_softcapping": 2.0},
    "gemma3_text": _COMMON | _WINDOWS | {"head_dim": 8},
    "glm": _COMMON | {"head_dim": 8},
    "glm4": _COMMON | {"head_dim": 8},
    "glm4_moe": _COMMON | _EXPERTS | {"n_routed_experts": 4, "head_dim": 8, "first_k_dense_replace": 1, "n_group": 2},
    "gpt2": _GPT,
    "helium": _COMMON | {"head_dim": 8},
    "gpt_bigcode": _GPT | {"multi_query": True},
    "gpt_oss": _COMMON | _WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8},
    "granitemoe": _COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "minimax_m2": _COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "rotary_dim": 4},
    "ministral": _COMMON | _WINDOWS | {"head_dim": 8},
    "mistral": _COMMON | {"sliding_window": WINDOW},
    "mixtral": _COMMON | {"num_local_experts": 4, "sliding_window": None},
    "olmo3": _COMMON | _WINDOWS,
    "olmoe": _COMMON | {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "phi3": _COMMON | {"partial_rotary_factor": 0.5, "sliding_window": WINDOW},
    "qwen2_moe": _COMMON | _EXPERTS | {"shared_expert_intermediate_size": 32},
    "qwen3": _COMMON | {"head_dim": 16},
    "qwen3_moe": _COMMON | _EXPERTS | {"head_dim": 8, "norm_topk_prob": True},
    "starcoder2": _COMMON | {"sliding_window": WINDOW},
}

MIXTURES = ("qwen3_moe", "mixtral", "olmoe", "deepseek_v3")
"""Mixtures of experts of different kinds: gated, with shared experts and dense layers, with groups of experts."""

CASES: dict[str, tuple[str, dict[str, Any]]] = {kind: (kind, settings) for kind, settings in _SETTINGS.items()} | {
    "qwen2 with windows": (
        "qwen2",
        _COMMON | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3_moe with a dense layer": ("qwen3_moe", _SETTINGS["qwen3_moe"] | {"mlp_only_layers": [0]}),
    "deepseek_v3 without query compression": ("deepseek_v3", _SETTINGS["deepseek_v3"] | {"q_lora_rank": None}),
    "llama with one key head and scaled positions": (
        "llama",
        _COMMON
        | {"num_key_value_heads": 1, "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}},
    ),
}


def tiny_config(case: str) -> PretrainedConfig:
    """Return a fresh configuration: transformers writes into those that it builds models from."""
    kind, settings = CASES[case]
    return config_of(kind, **settings)


def config_of(kind: str, **settings: Any) -> PretrainedConfig:
    """Return the configuration of an architecture by its name."""
    config: Any = CONFIG_MAPPING[kind]
    return config(**settings)
