"""Train the perturber (LANCE, arXiv 2305.19164, section 3.1): a LoRA adapter on caption-edit pairs.

It works with any causal language model that has a chat template. The loss is over the tokens of the reply only. Rank 8,
alpha 16 and dropout 0.05 are the paper's values.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import DataCollatorForSeq2Seq, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from llm_service.causal import load_causal
from llm_service.pairs import Pair
from shared.profiles.weights import Weights
from shared.schemas.language import Message
from shared.schemas.service import WeightsInfo

IGNORED = -100  # the label that torch's cross entropy ignores
MOST_HELD_OUT = 500
_CARD = """---
base_model: {base}
library_name: peft
tags: [contrafact, lora]
---
# A perturber: LoRA adapter for {base}

Trained on {pairs} caption-edit pairs by Contrafact's `python -m llm_service.train_perturber`, for {base} at revision
`{revision}`. Loss per token on the replies of {held_out} held-out pairs: {loss_before} before, {loss_after} after.
Settings and losses are in `training.json`. A profile loads it by `[language.adapter]`.
"""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How an adapter is trained. `layers` are peft's `target_modules`: `all-linear`, or names separated by commas.

    `at_once` is the micro-batch size, `batch` the batch size of an optimiser step; `longest` is in tokens.
    `held_out` is the share of the pairs that are held out for evaluation, MOST_HELD_OUT at most.
    """

    rank: int = 8
    alpha: int = 16
    dropout: float = 0.05
    layers: str = "all-linear"
    epochs: float = 3.0
    batch: int = 16
    at_once: int = 16
    learning_rate: float = 3e-4
    held_out: float = 0.05
    longest: int = 2048
    seed: int = 0
    save_every: int = 100

    def __post_init__(self) -> None:
        if self.batch % self.at_once:
            raise ValueError(
                f"a batch of {self.batch} cannot be split into micro-batches of {self.at_once}; choose a divisor"
            )


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """Numbers of pairs and steps, and the loss per token of the held-out replies before and after training."""

    pairs: int
    held_out: int
    steps: int
    loss_before: float | None
    loss_after: float | None


def train(
    weights: Weights, pairs: Sequence[Pair], recipe: Recipe, folder: Path, *, device: str = "cpu"
) -> TrainingResult:
    """Train an adapter for `weights` and write it, with card and record, into `folder`.

    After an interruption, a call with the same arguments resumes from the last checkpoint, which is stored beside
    `folder`. Raises ValueError for pairs that do not fit the model, and for checkpoints of other arguments.
    """
    model, tokenizer, base = load_causal(weights)
    rows = [tokens(tokenizer, pair, recipe.longest, number) for number, pair in enumerate(pairs, start=1)]
    training, held_out = _split_rows(rows, recipe)
    checkpoints = _checkpoints(folder, recipe, pairs, base)
    adapted = _with_fresh_adapter(model.to(device), recipe, base)
    trainer = Trainer(
        model=adapted,
        args=_arguments(recipe, checkpoints, device),
        train_dataset=training,
        eval_dataset=held_out or None,
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
    )
    before = trainer.evaluate()["eval_loss"] if held_out else None  # a new adapter does not change the model
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)))
    after = trainer.evaluate()["eval_loss"] if held_out else None
    result = TrainingResult(len(training), len(held_out), trainer.state.global_step, before, after)
    _save(adapted, folder, base, recipe, result)
    shutil.rmtree(checkpoints)
    return result


def tokens(tokenizer: Any, pair: Pair, longest: int, number: int = 1) -> dict[str, list[int]]:
    """`input_ids` of question and reply, and `labels`: the same with IGNORED for the question's tokens.

    The question is tokenised as in llm_service. The reply is tokenised separately, because it is generated after the
    question; it ends as the chat template ends a turn. Raises ValueError, naming the pair by `number`, for more than
    `longest` tokens.
    """
    messages = [message.model_dump() for message in pair.messages]
    conversation = [*messages, Message(role="assistant", content=pair.reply).model_dump()]
    question = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    text = tokenizer.apply_chat_template(conversation, tokenize=False)
    completion = text.removeprefix(question)
    if not completion.startswith(pair.reply) or completion == pair.reply:
        # Some templates rewrite earlier turns after an answer, others do not end a turn; then use the end token.
        completion = f"{pair.reply}{tokenizer.eos_token}"
    before = list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False))
    after = list(tokenizer(completion, add_special_tokens=False)["input_ids"])
    if len(before) + len(after) > longest:
        raise ValueError(f"pair {number} has {len(before) + len(after)} tokens, more than {longest}; leave it out")
    ids = before + after
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "labels": [IGNORED] * len(before) + after}


def _split_rows(rows: list[dict[str, list[int]]], recipe: Recipe) -> tuple[list[Any], list[Any]]:
    """Split into training and held-out rows."""
    mixed = Random(recipe.seed).sample(rows, len(rows))
    count = min(MOST_HELD_OUT, round(len(rows) * recipe.held_out))
    if count >= len(rows):
        raise ValueError(f"{len(rows)} pairs leave none for training; collect more, or hold out a smaller share")
    return mixed[count:], mixed[:count]


def _checkpoints(folder: Path, recipe: Recipe, pairs: Sequence[Pair], base: WeightsInfo) -> Path:
    """Return the folder of this training's checkpoints; refuse one that belongs to another training."""
    place = folder.with_name(f"{folder.name}.checkpoints")
    lines = hashlib.sha256("\n".join(pair.model_dump_json() for pair in pairs).encode()).hexdigest()
    mark = place / "training.json"
    fingerprint = json.dumps({**asdict(recipe), "base": base.revision, "pairs": lines})
    if mark.exists() and mark.read_text() != fingerprint:
        raise ValueError(f"{place} has checkpoints of other pairs, weights or settings; remove it, or write elsewhere")
    place.mkdir(parents=True, exist_ok=True)
    mark.write_text(fingerprint)
    return place


def _with_fresh_adapter(model: Any, recipe: Recipe, base: WeightsInfo) -> Any:
    torch.manual_seed(recipe.seed)
    config = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        lora_dropout=recipe.dropout,
        target_modules=recipe.layers if recipe.layers == "all-linear" else recipe.layers.split(","),
        task_type=TaskType.CAUSAL_LM,
    )
    return get_peft_model(
        model, config, revision=base.revision
    )  # `llm_service.causal` compares it with its base's revision


def _arguments(recipe: Recipe, checkpoints: Path, device: str) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(checkpoints),
        per_device_train_batch_size=recipe.at_once,
        per_device_eval_batch_size=recipe.at_once,
        gradient_accumulation_steps=recipe.batch // recipe.at_once,
        num_train_epochs=recipe.epochs,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=0.05,  # of all steps
        seed=recipe.seed,
        save_steps=recipe.save_every,
        save_total_limit=1,
        logging_steps=20,
        use_cpu=device == "cpu",
        dataloader_pin_memory=device != "cpu",
        remove_unused_columns=False,
        prediction_loss_only=True,
        report_to="none",
        disable_tqdm=True,
    )


def _save(adapted: Any, folder: Path, base: WeightsInfo, recipe: Recipe, result: TrainingResult) -> None:
    """Write adapter, model card and training record."""
    adapted.save_pretrained(str(folder), safe_serialization=True, save_embedding_layers=False)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"] = sorted(
        config["target_modules"]
    )  # peft stores a set; sorting makes equal trainings write equal files
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
    record = {"base": base.model_dump(), **asdict(recipe), **{f"got_{k}": v for k, v in asdict(result).items()}}
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    losses = {key: "-" if v is None else f"{v:.3f}" for key, v in asdict(result).items() if key.startswith("loss")}
    card = _CARD.format(base=base.id, revision=base.revision, **{**asdict(result), **losses})
    (folder / "README.md").write_text(card)
