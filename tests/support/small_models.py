"""Small models with random weights, of the very classes that the large profiles load, saved in Hub layout.

They say nothing sensible; they are for what does not depend on that: loading, batching, determinism, schemas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    BlipImageProcessorPil,
    CLIPImageProcessorPil,
    CLIPVisionConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    OPTConfig,
    PreTrainedTokenizerFast,
)

PAD, BOS, EOS, IMAGE = range(4)
SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]
CHAT_TEMPLATE = (
    "<s>{% for message in messages %}{{ message.role }}: {% if message.content is string %}{{ message.content }}"
    "{% else %}{% for part in message.content %}{% if part.type == 'image' %}<image>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer(special: Sequence[str] = SPECIAL) -> PreTrainedTokenizerFast:
    """One token per byte, one merge (llama.cpp wants one), plus the special ones."""
    pieces = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet()), "th"]
    blank = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=[("t", "h")]))
    blank.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    blank.decoder = decoders.ByteLevel()
    blank.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    return PreTrainedTokenizerFast(
        tokenizer_object=blank,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(special[3:]),
        chat_template=CHAT_TEMPLATE,
        padding_side="left",
    )


def llama_config(vocabulary: int, width: int = 32) -> LlamaConfig:
    """Two layers of `width`, with four heads."""
    return LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        initializer_range=0.3,
    )


def save_llama(folder: Path, width: int = 32) -> Path:
    """LlamaForCausalLM with a chat template."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    LlamaForCausalLM(llama_config(len(tokenizer), width)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_blip2(folder: Path, *, image_token: bool = True) -> Path:
    """Blip2ForConditionalGeneration with OPT, as Salesforce/blip2-opt-*; older ones have no image placeholder token."""
    tokenizer = byte_tokenizer(SPECIAL if image_token else SPECIAL[:3])
    vision = Blip2VisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    queries = Blip2QFormerConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, encoder_hidden_size=32
    )
    language = OPTConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        init_std=0.3,
    )
    config = Blip2Config(
        vision_config=vision,
        qformer_config=queries,
        text_config=language,
        num_query_tokens=4,
        image_token_index=IMAGE if image_token else None,
        initializer_range=0.3,
    )
    torch.manual_seed(0)
    model = Blip2ForConditionalGeneration(config)
    torch.nn.init.normal_(model.query_tokens)
    for weight in (p for part in (model.vision_model, model.qformer) for p in part.parameters() if p.ndim > 1):
        torch.nn.init.normal_(weight, std=0.3)  # so that images make a difference
    torch.nn.init.normal_(model.language_projection.weight)
    for generation in (model.generation_config, model.language_model.generation_config):
        generation.pad_token_id, generation.bos_token_id, generation.eos_token_id = PAD, BOS, EOS
    model.save_pretrained(folder)
    images = BlipImageProcessorPil(size={"height": 32, "width": 32})
    if image_token:
        Blip2Processor(images, tokenizer, num_query_tokens=4).save_pretrained(folder)
    else:
        images.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folder


def save_llava(folder: Path) -> Path:
    """LlavaForConditionalGeneration: an image-text-to-text model whose processor needs no torchvision."""
    tokenizer = byte_tokenizer()
    vision = CLIPVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    config = LlavaConfig(
        vision_config=vision, text_config=llama_config(len(tokenizer)), image_token_index=IMAGE, pad_token_id=PAD
    )
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = PAD, EOS
    model.save_pretrained(folder)
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    processor = LlavaProcessor(
        images,
        tokenizer,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=CHAT_TEMPLATE,
        num_additional_image_tokens=1,
    )
    processor.save_pretrained(folder)
    return folder
