"""llama.cpp's own OpenAI-compatible server, on the CPU, with a Llama of ours converted to its file format."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from numpy.typing import NDArray
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_NAMES = {
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


def write_gguf(folder: Path, path: Path) -> Path:
    """Convert a LlamaForCausalLM with a byte-level BPE tokenizer to GGUF, float32."""
    model = LlamaForCausalLM.from_pretrained(folder)
    config: LlamaConfig = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, AutoTokenizer.from_pretrained(folder))
    for name, tensor in model.state_dict().items():
        writer.add_tensor(*_renamed(name, tensor.float().numpy(), config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@contextmanager
def llama_cpp_server(model: Path, chat_template: str = "", quantised_cache: bool = False) -> Iterator[str]:
    """The root URL of the OpenAI API of a server that runs `model`, with `chat_template` in place of the file's own."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(model)
    parameters.n_ctx = 4096
    parameters.n_parallel = 2
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.warmup = False
    parameters.use_jinja = True
    if chat_template:
        parameters.chat_template = chat_template
    if quantised_cache:
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    server = xllamacpp.Server(parameters)
    yield f"{server.listening_address}/v1"
    del server


def _add_tokenizer(writer: gguf.GGUFWriter, tokenizer: PreTrainedTokenizerFast) -> None:
    state = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    special = set(tokenizer.all_special_tokens)
    kinds = [gguf.TokenType.CONTROL if piece in special else gguf.TokenType.NORMAL for piece, _ in pieces]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([piece for piece, _ in pieces])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(tokenizer.chat_template)


def _renamed(name: str, tensor: NDArray[np.float32], config: LlamaConfig) -> tuple[str, NDArray[np.float32]]:
    if name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"):
        outer = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
        return f"{outer[name.removesuffix('.weight')]}.weight", tensor
    _, _, block, part = name.removesuffix(".weight").split(".", 3)
    if part.endswith(("q_proj", "k_proj")):
        heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
        # GGUF keeps Meta's order of rotary pairs (neighbours); the Hub's layout keeps halves.
        tensor = tensor.reshape(heads, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
    return f"blk.{block}.{_NAMES[part]}.weight", np.ascontiguousarray(tensor)
