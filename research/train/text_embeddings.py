"""Train the text embedder of the text checks (BertModel, mean pooling): `python -m research.train.text_embeddings`.

Phrases of the same meaning are pulled together, those of other concepts pushed apart: synonyms (crimson, red) from
siblings (crimson, azure); a kind (vehicle) lies between its classes. Pairs that `thesaurus.py` withholds are never
compared. Words without meaning in tinyworld (English and invented ones) are separate concepts, so that no word is near
a class by accident. An interrupted run resumes from the last checkpoint in `runs/text-embeddings`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerFast

from research.domain.language_domain import english_words
from research.networks.small_bert import small_bert
from research.objects.thesaurus import Meaning, meanings, withheld_pair, withheld_phrases
from research.system.folders import WEIGHTS
from research.train.loop import Recipe, recipe_record, train, training_arguments
from research.train.model_card import save_model, write_card
from tinyworld.networks.word_tokenizer import learn_word_tokenizer

FOLDER = WEIGHTS / "text_embeddings"
WIDTH, LENGTH, PIECES = 64, 32, 640
KIND = 0.68  # the similarity of a kind and a class of it
SIBLING = 0.3  # the most that classes of one kind may be alike
STRANGER = 0.1  # the most that other concepts may be
_CARRIERS = ("{}", "{}", "a {}", "the {}", "some {}", "in {}", "with a {}", "of the {}")


# What two phrases have to do with each other, from strangers to synonyms.
STRANGERS, SIBLINGS, KINDRED, SYNONYMS, UNSAID = range(5)
_LOWEST = torch.tensor([-1.0, -1.0, KIND, 1.0, -1.0])
_HIGHEST = torch.tensor([STRANGER, SIBLING, KIND, 1.0, 1.0])


def relation(first_meaning: tuple[str, Meaning], second_meaning: tuple[str, Meaning]) -> int:
    """What two phrases with their concepts have to do with each other; UNSAID where training must not compare them."""
    (phrase, first), (other_phrase, second) = first_meaning, second_meaning
    if phrase != other_phrase and withheld_pair(phrase, other_phrase):
        return UNSAID
    if first == second:
        return SYNONYMS
    if _kind_of(first, second):
        return KINDRED
    return SIBLINGS if set(first.kinds) & set(second.kinds) else STRANGERS


@dataclass(frozen=True, slots=True)
class Batch:
    """Texts of a step; `numbers` are those of the phrases in each (one, twice, or an adjective and a noun)."""

    texts: list[str]
    numbers: list[tuple[int, int]]


class Lesson:
    """Draws batches of phrases with their target similarities."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.concepts = meanings()
        withheld = withheld_phrases()
        self.phrases = [(p, meaning) for meaning in self.concepts for p in meaning.phrases if p not in withheld]
        meaningful = {word for phrase, _ in self.phrases for word in phrase.lower().replace("-", " ").split()}
        self.words = [word for word in english_words() if word not in meaningful and word not in withheld]
        fields = [meaning.field for _, meaning in self.phrases]
        self._adjectives = [i for i, field in enumerate(fields) if field in ("size", "colour", "pattern")]
        self._nouns = [i for i, field in enumerate(fields) if field in ("label", "companion", "kind", "thing")]
        relations = [[relation(meaning, second) for second in self.phrases] for meaning in self.phrases]
        self._relations = nn.functional.pad(torch.tensor(relations), (0, 1, 0, 1))  # the last is a stranger to all

    def draw(self, step: int) -> Batch:
        """The phrases of a step: many of few concepts, so that each meets its synonyms."""
        random = Random(f"text-embeddings/{step}")
        chosen = random.sample(self.concepts, 12)
        members = [i for i, (_, meaning) in enumerate(self.phrases) if meaning in chosen] or [0]
        single = random.sample(range(len(self.phrases)), self.batch // 2) + random.choices(members, k=self.batch // 4)
        texts = [random.choice(_CARRIERS).format(self.phrases[i][0]) for i in single]
        pairs_drawn = [(i, i) for i in single]
        for _ in range(self.batch // 8):
            pair = random.choice(self._adjectives), random.choice(self._nouns)
            texts += [" ".join(self.phrases[i][0] for i in pair), self._stranger(random)]
            pairs_drawn += [pair, (len(self.phrases), len(self.phrases))]
        return Batch(texts, pairs_drawn)

    def bounds(self, pairs_drawn: list[tuple[int, int]]) -> tuple[Tensor, Tensor]:
        """The lowest and the highest cosine that the texts of a step should have, each texts × texts."""
        parts = torch.tensor(pairs_drawn)
        pairs = [self._relations[parts[:, i]][:, parts[:, j]] for i in (0, 1) for j in (0, 1)]
        relations = torch.stack(pairs).amax(0)
        alone = parts[:, 0] == parts[:, 1]
        relations[(relations > SIBLINGS) & ~(alone[:, None] & alone)] = UNSAID  # "red bus" is not quite a bus
        relations.fill_diagonal_(UNSAID)
        return _LOWEST[relations], _HIGHEST[relations]

    def _stranger(self, random: Random) -> str:
        word = random.choice(self.words)
        if random.random() < 0.5:
            word = "".join(random.choices("abcdefghiklmnoprstuvwy", k=random.randint(3, 9)))
        return random.choice(_CARRIERS).format(word)


def _kind_of(meaning: Meaning, second: Meaning) -> bool:
    return (meaning.field == "kind" and meaning.value in second.kinds) or (
        second.field == "kind" and second.value in meaning.kinds
    )


class PhraseLoss:
    """Distance of the cosines of a step's phrases from their target ranges."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, lesson: Lesson) -> None:
        self.tokenizer = tokenizer
        self.lesson = lesson

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        batch = self.lesson.draw(step)
        lowest, highest = self.lesson.bounds(batch.numbers)
        rows = embeddings(model, self.tokenizer, batch.texts)
        cosines = rows @ rows.T
        missing, excess = (lowest - cosines).relu() ** 2, (cosines - highest).relu() ** 2
        return missing.sum() / (lowest > -1).sum() + excess.sum() / len(rows)


def embeddings(model: nn.Module, tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """L2-normalised mean of the last states, texts × width."""
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    mask = inputs.attention_mask[..., None]
    states = model(input_ids=inputs.input_ids, attention_mask=inputs.attention_mask).last_hidden_state
    return nn.functional.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)


def build_model(vocabulary: int) -> BertModel:
    """The model with fresh weights."""
    return BertModel(small_bert(vocabulary, WIDTH, WIDTH, LENGTH))


def write_pooling() -> None:
    """sentence-transformers' description of the layout, so that it can load the model, too."""
    parts = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (FOLDER / "modules.json").write_text(json.dumps(parts, indent=1) + "\n")
    (FOLDER / "1_Pooling").mkdir(exist_ok=True)
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    (FOLDER / "1_Pooling" / "config.json").write_text(json.dumps(pooling) + "\n")


@torch.no_grad()
def judge(model: nn.Module, tokenizer: PreTrainedTokenizerFast) -> dict[str, object]:
    """Mean cosines of pairs of single concepts: compared in training, and withheld from it."""
    phrases = [(phrase, meaning) for meaning in meanings() for phrase in meaning.phrases]
    rows = embeddings(model, tokenizer, [phrase for phrase, _ in phrases])
    cosines = (rows @ rows.T).tolist()
    cosines_of: dict[str, list[float]] = {}
    for i, (phrase, meaning) in enumerate(phrases):
        for j, (other_phrase, other_meaning) in enumerate(phrases[:i]):
            kindred = (
                "kind"
                if _kind_of(meaning, other_meaning)
                else "sibling"
                if meaning.field == other_meaning.field
                else "stranger"
            )
            split = "withheld" if withheld_pair(phrase, other_phrase) else "compared"
            name = f"{'same' if meaning == other_meaning else kindred}, {split}"
            cosines_of.setdefault(name, []).append(cosines[i][j])
    return {name: _spread(values) for name, values in sorted(cosines_of.items())}


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 100], ordered[-1 - len(ordered) // 100]
    return f"{sum(values) / len(values):.2f} ({low:.2f} to {high:.2f} without the outermost 1 %, n = {len(values)})"


def main() -> None:
    """Train, judge, and write weights, tokenizer, pooling and card."""
    arguments = training_arguments(__doc__, 200.0)
    recipe = Recipe("text-embeddings", arguments.seconds, 160, 3e-3, weight_decay=0.01, ema=0.99, seed=arguments.seed)
    lesson = Lesson(recipe.batch)
    texts = [phrase for phrase, _ in lesson.phrases]
    tokenizer = learn_word_tokenizer([*texts * 8, " ".join(lesson.words)], PIECES, FOLDER, max_length=LENGTH)
    torch.manual_seed(recipe.seed)
    model = build_model(len(tokenizer))
    progress = train(model, PhraseLoss(tokenizer, lesson), recipe)
    parameters = save_model(model, FOLDER)
    results = judge(BertModel.from_pretrained(FOLDER, dtype=torch.float32), tokenizer)
    write_pooling()
    write_card(
        FOLDER,
        title="Text embedder of the text checks",
        text="A BertModel whose mean-pooled states say what words and phrases of tinyworld mean. Mean cosines of pairs "
        "of phrases, by what they have to do with each other; `withheld` pairs were never compared in training. "
        "`python -m research.measure.text_checks` measures the checks that use it.",
        command=f"python -m research.train.text_embeddings --seconds {recipe.seconds:.0f}",
        results=results,
        record={"parameters": parameters, "phrases": len(lesson.phrases), **recipe_record(recipe, progress)},
    )
    print(json.dumps(results, indent=1), flush=True)


if __name__ == "__main__":
    main()
