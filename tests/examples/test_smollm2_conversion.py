"""The conversion of `examples/smollm2`, on a tiny GGUF file that gguf's own writer makes."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from examples.smollm2.convert import convert, find_gguf

HEADS, KEY_HEADS = 4, 2
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "ab", "Ġ"]
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).bfloat16()


@pytest.fixture(scope="module")
def gguf_file(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(WORDS)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if word.startswith("<|") else normal for word in WORDS])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(_gguf_name(name), _in_llama_cpp_order(name, weight.float().numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        number, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
        return f"blk.{number}.{NAMES[part]}.weight"
    return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]


def _in_llama_cpp_order(name: str, weight: np.ndarray) -> np.ndarray:
    """Return queries and keys with neighbouring halves of the rotary pairs, as llama.cpp has them."""
    heads = HEADS if "q_proj" in name else KEY_HEADS if "k_proj" in name else 0
    if not heads:
        return weight
    return np.ascontiguousarray(weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape))


def test_a_converted_folder_computes_what_the_model_did(
    model: LlamaForCausalLM, gguf_file: Path, tmp_path: Path
) -> None:
    convert(gguf_file, tmp_path)
    converted = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert converted.dtype == torch.bfloat16
    token_ids = torch.tensor([[3, 6, 5, 1, 4]])
    torch.testing.assert_close(converted(token_ids).logits, model(token_ids).logits)


def test_a_converted_tokenizer_keeps_its_merges_and_template(gguf_file: Path, tmp_path: Path) -> None:
    convert(gguf_file, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer.encode("abc<|im_end|>", add_special_tokens=False) == [6, 5, 2]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"


def test_an_absent_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("examples.smollm2.convert.PACKAGE", "no_such_package_of_weights")
    with pytest.raises(FileNotFoundError, match="make smollm2"):
        find_gguf()
