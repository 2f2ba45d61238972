"""The captioner before training: processor and BLIP-2, new or from earlier weights."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Blip2Processor,
    Blip2QFormerConfig,
    Blip2VisionConfig,
    BlipImageProcessorPil,
    OPTConfig,
    PreTrainedTokenizerFast,
)

from research.networks.new_words import add_embeddings, add_words
from research.pictures.augmentation import SIDE

QUERIES = 16
WIDTH = 160
PAD, BOS, EOS, IMAGE = range(4)
_SPECIAL = ["<pad>", "<s>", "</s>", "<image>"]


def learn_processor(texts: list[str], folder: Path) -> Blip2Processor:
    """Image processor and byte-level BPE tokenizer, saved into a folder and reloaded."""
    blank = Tokenizer(models.BPE())
    blank.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    blank.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1_200, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    blank.train_from_iterator(texts, trainer)
    blank.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=blank,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        padding_side="left",
        model_max_length=128,
    )
    images = BlipImageProcessorPil(
        size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3, resample=2
    )
    Blip2Processor(images, tokenizer, num_query_tokens=QUERIES).save_pretrained(folder)
    return Blip2Processor.from_pretrained(folder)


def new_captioner(vocabulary: int) -> Blip2ForConditionalGeneration:
    """2.6 million parameters: a tower of 4 × 128, a Q-Former of 2 × 128, an OPT of 3 × 160."""
    model = Blip2ForConditionalGeneration._from_config(_configuration(vocabulary), attn_implementation="eager")
    nn.init.normal_(model.query_tokens, std=1.0)  # zeros, the default, would leave all queries alike for ever
    for generation in (model.generation_config, model.language_model.generation_config):
        generation.pad_token_id, generation.bos_token_id, generation.eos_token_id = PAD, BOS, EOS
    return model


def _configuration(vocabulary: int) -> Blip2Config:
    vision = Blip2VisionConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=16,
        initializer_range=0.03,
    )
    queries = Blip2QFormerConfig(
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        cross_attention_frequency=1,
        encoder_hidden_size=128,
        vocab_size=1,
        max_position_embeddings=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.03,
    )
    language = OPTConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        word_embed_proj_dim=WIDTH,
        ffn_dim=4 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=256,
        dropout=0.0,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        init_std=0.03,
    )
    return Blip2Config(
        vision_config=vision,
        qformer_config=queries,
        text_config=language,
        num_query_tokens=QUERIES,
        image_token_index=IMAGE,
        initializer_range=0.03,
    )


def load_trained(folder: Path, texts: list[str]) -> tuple[Blip2Processor, Blip2ForConditionalGeneration]:
    """Processor and weights of an earlier training, with tokens for words of these texts that it lacked."""
    processor = Blip2Processor.from_pretrained(folder)
    model = Blip2ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if add_words(processor.tokenizer, texts):
        add_embeddings(model, processor.tokenizer)
    return processor, model
