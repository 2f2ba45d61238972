"""Train the masked language model of LANCE-R (BertForMaskedLM): `python -m research.train.masked_words`.

It learns to predict hidden words of captions. It is evaluated on captions of an unseen split with one meaningful word
hidden, as in LANCE-R. An interrupted run resumes from the last checkpoint in `runs/masked-words`.
"""

from __future__ import annotations

import json
from random import Random

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from gateway.methods.words import content_words
from research.networks.small_bert import small_bert
from research.statistics.rates import fraction_text
from research.system.folders import WEIGHTS
from research.train.loop import Recipe, recipe_record, train, training_arguments
from research.train.model_card import save_model, write_card
from shared.seeds import derive_seed
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.scenes import Split
from tinyworld.networks.word_tokenizer import whole_word_tokenizer
from tinyworld.objects.captions import caption
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import sample_scene

FOLDER = WEIGHTS / "masked_words"
WIDTH, LENGTH = 48, 96
CAPTIONS = 30_000
HIDDEN = 0.2  # share of the words that a step hides
JUDGED = 500


def captions(split: Split, count: int, withheld: Withheld = "nothing") -> list[str]:
    """The first captions of a split, of combinations of factors that are not withheld."""
    scenes = [sample_scene(split, index, allow_withheld=False) for index in range(count)]
    return [
        caption(scene, derive_seed("masked-words", split, place), withheld=withheld)
        for place, scene in enumerate(scenes)
    ]


class HiddenWordLoss:
    """The cross-entropy of hidden words."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, texts: list[str], batch: int) -> None:
        self.rows = [torch.tensor(ids) for ids in tokenizer(texts).input_ids]
        self.batch = batch
        self.padding, self.mask = tokenizer.pad_token_id, tokenizer.mask_token_id
        self.special = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        chosen = Random(f"masked-words/{step}").sample(self.rows, self.batch)
        ids = nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=self.padding)
        hidden = (torch.rand(ids.shape) < HIDDEN) & ~torch.isin(ids, self.special)
        logits = model(input_ids=ids.masked_fill(hidden, self.mask), attention_mask=(ids != self.padding).long()).logits
        return nn.functional.cross_entropy(logits[hidden], ids[hidden])


def build_model(vocabulary: int) -> BertForMaskedLM:
    """The model with fresh weights."""
    return BertForMaskedLM(small_bert(vocabulary, WIDTH, 2 * WIDTH, LENGTH))


@torch.no_grad()
def judge(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> dict[str, str]:
    """For one hidden word per caption: how often the top prediction is that word, and how often a word of its field."""
    results = {}
    for name, withheld in (("usual sentences", "nothing"), ("half of the sentences withheld", "sentences")):
        hits, gaps, same_field, stated = 0, 0, 0, 0
        for place, text in enumerate(captions("final-test", JUDGED, withheld)):  # type: ignore[arg-type]
            start, end = Random(f"judged/{place}").choice(content_words(text))
            ids = tokenizer(f"{text[:start]}[MASK]{text[end:]}", return_tensors="pt").input_ids
            logits = model(input_ids=ids).logits[ids == tokenizer.mask_token_id]
            word, first = text[start:end].lower(), tokenizer.decode(logits.argmax(-1))
            hits, gaps = hits + (first == word), gaps + 1
            if fields := _fields(word):
                same_field, stated = same_field + bool(fields & _fields(first)), stated + 1
        results[f"the hidden word comes first, {name}"] = fraction_text(hits, gaps)
        results[f"the first word says something of the same field, {name}"] = fraction_text(same_field, stated)
    return results


def _fields(word: str) -> set[str]:
    """The scene fields that have this word as a whole phrase."""
    return {
        slot.field.removeprefix("companion_")
        for slot in SLOTS.values()
        if any(word in wording.all for wording in slot.wordings.values())
    }


def main() -> None:
    """Train, judge, and write weights, tokenizer and card."""
    arguments = training_arguments(__doc__, 240.0)
    recipe = Recipe("masked-words", arguments.seconds, 32, 5e-3, weight_decay=0.01, ema=0.99, seed=arguments.seed)
    texts = captions("generator", CAPTIONS)
    tokenizer = whole_word_tokenizer(texts, FOLDER, max_length=LENGTH)
    torch.manual_seed(recipe.seed)
    model = build_model(len(tokenizer))
    progress = train(model, HiddenWordLoss(tokenizer, texts, recipe.batch), recipe)
    parameters = save_model(model, FOLDER)
    results = judge(BertForMaskedLM.from_pretrained(FOLDER, dtype=torch.float32), tokenizer)
    write_card(
        FOLDER,
        title="Masked words",
        text="A BertForMaskedLM that says which word a caption of tinyworld hides; LANCE-R fills gaps with it. Each "
        "figure: right / asked (share, 95 % Wilson interval), on captions of a split that it never saw.",
        command=f"python -m research.train.masked_words --seconds {recipe.seconds:.0f}",
        results=results,
        record={"split": "generator", "parameters": parameters, **recipe_record(recipe, progress)},
    )
    print(json.dumps(results, indent=1), flush=True)


if __name__ == "__main__":
    main()
