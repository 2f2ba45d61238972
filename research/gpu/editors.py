"""Part C: FLUX.2 klein on random weights through the service's editor, by how its weights are offloaded."""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer, Qwen3Config, Qwen3ForCausalLM

from benchmarks.random_networks import SHARD, random_network
from diffusion_service.editors.pipelines import PipelineEdit, PipelineEditor, PipelineItem
from research.full_services.generating import picture
from research.gpu.memory import KLEIN, QWEN
from research.gpu.rows import Run
from shared.media.images import Pixels
from shared.profiles.instruct import InstructPipeline, Offload
from shared.profiles.weights import Weights

_TINY_KLEIN: Mapping[str, Any] = {
    "num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2,
    "joint_attention_dim": 48, "in_channels": 16, "axes_dims_rope": (4, 4, 4, 4), "guidance_embeds": False,
}  # fmt: skip
_TINY_QWEN: Mapping[str, Any] = {
    # The pipeline reads hidden states up to the 27th layer.
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 28, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 300,
}  # fmt: skip
_TINY_CODER: Mapping[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
    "block_out_channels": (8, 8), "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 4,
}  # fmt: skip
_MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
INSTRUCTIONS = ("make it night", "let it rain")
STEPS = 4


def measure(run: Run) -> None:
    """Rows for each way to offload: loading, a new instruction, the same again, and one that was encoded before."""
    folder = run.weights / ("klein-tiny" if run.tiny else "klein")
    if not (folder / "model_index.json").exists():
        with run.row(work="write weights"):
            write_klein(folder, tiny=run.tiny)
    weights = Weights(path=folder, dtype="bfloat16", licence="none", gigabytes=8.1)
    resolution = 96 if run.tiny else 1024
    source = picture(resolution)
    ways: tuple[Offload, ...] = ("none", "model", "sequential", "auto")
    for offload in ways:
        profile = InstructPipeline(
            engine="pipeline", pipeline="Flux2KleinPipeline", weights=weights, resolution=resolution, offload=offload
        )
        loaded: list[PipelineEditor] = []  # stays empty if memory is short, which the row says
        with run.row(offload=offload, work="load"):
            loaded.append(PipelineEditor(profile, run.device))
        if loaded:
            _edits(run, offload, loaded.pop(), source)
        gc.collect()
        torch.cuda.empty_cache()


def _edits(run: Run, offload: Offload, editor: PipelineEditor, source: Pixels) -> None:
    items = [PipelineItem(source, None, text, seed, STEPS, 1.0) for seed, text in enumerate(INSTRUCTIONS)]
    for work, item in (("warm-up", items[0]), ("encoded before", items[0]), ("new instruction", items[1])):
        with run.row(offload=offload, work=work, steps=STEPS) as row:
            (result,) = editor.edit(item, [item])
            row["evaluations"] = result.evaluations if isinstance(result, PipelineEdit) else repr(result)


def write_klein(folder: Path, *, tiny: bool) -> None:
    """Write the pipeline with random weights in bfloat16, in the Hub's layout."""
    networks: Mapping[str, tuple[str, Any]] = {
        "transformer": ("diffusers", lambda: Flux2Transformer2DModel(**(_TINY_KLEIN if tiny else KLEIN))),
        "text_encoder": (
            "transformers", lambda: Qwen3ForCausalLM(Qwen3Config(**(_TINY_QWEN if tiny else QWEN))),
        ),
        "vae": ("diffusers", lambda: AutoencoderKLFlux2(**(_TINY_CODER if tiny else {}))),
    }  # fmt: skip
    index: dict[str, Any] = {
        "_class_name": "Flux2KleinPipeline", "_diffusers_version": "0.42.1", "is_distilled": True,
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"], "tokenizer": ["transformers", "Qwen2Tokenizer"],
    }  # fmt: skip
    for name, (library, build) in networks.items():
        network = random_network(build, torch.bfloat16)
        network.save_pretrained(folder / name, max_shard_size=SHARD)
        index[name] = [library, type(network).__name__]
        del network
    FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True).save_pretrained(folder / "scheduler")
    vocabulary = {piece: number for number, piece in enumerate([*sorted(ByteLevel.alphabet()), *_MARKS])}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[], extra_special_tokens=list(_MARKS[1:]))
    tokenizer.chat_template = _TEMPLATE
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "model_index.json").write_text(json.dumps(index))
