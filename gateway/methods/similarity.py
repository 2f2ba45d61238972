"""LANCE's text checks: how similar the phrases of an edit are to the names of classes and to one another.

A similarity is 1 for equal stems and otherwise the cosine of two phrases' sentence embeddings ("automobile" is near the
class "car").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Protocol

import numpy as np

from gateway.methods.counterfactual import ACCEPTED, Edit, MethodImage, Scores, TaskDescription, Thresholds, Verdict
from gateway.methods.image_scores import Vector
from gateway.methods.text_checks import check_stems, differing_part
from gateway.methods.words import STOP_WORD, WORD, content_stems, names_class, stems
from shared.chunks import chunks
from shared.schemas.evaluation import EmbedTextsReply, EmbedTextsRequest

LONGEST_GRAM = 3  # words compared together; more if a class name is longer
MAX_TEXTS = 256  # per message


class TextEmbedder(Protocol):
    """The service that `check_texts` calls."""

    def embed_texts(self, request: EmbedTextsRequest) -> EmbedTextsReply: ...


def check_texts(
    services: TextEmbedder, source: MethodImage, task: TaskDescription, edits: Sequence[Edit], thresholds: Thresholds
) -> list[tuple[Verdict, Scores]]:
    """Verdict by stems and by meaning, and similarities, of each proposed edit of one source image."""
    other_classes = [label for label in task.classes if label != source.ground_truth]
    judged = []
    for edit, scores in zip(edits, similarities(services, source, task, edits), strict=True):
        verdict = check_stems(edit, source.ground_truth, other_classes) or check_meaning(edit, scores, thresholds)
        judged.append((verdict or ACCEPTED, scores))
    return judged


def check_meaning(edit: Edit, scores: Scores, thresholds: Thresholds) -> Verdict | None:
    """Refuse an edit if one of its `similarities` reaches the strictest threshold of its factors.

    If the old caption names the class, the new caption's similarity to the class must also reach the threshold of
    `class_kept`, or be as large as before. Without thresholds, only equal stems refuse.
    """

    def limits(check: str) -> list[float]:
        table = thresholds.get(check, {"default": 1.0})
        return [table.get(change.factor, table["default"]) for change in edit.changes]

    touching, similarity_kept = min(limits("class_words")), scores.get("class_kept", 1.0)
    if scores.get("class_words", 0.0) >= touching:
        return Verdict(False, "class words", f"the change touches the class: similarity {scores['class_words']:.2f}")
    before = scores.get("class_before", 0.0)
    if before >= touching and similarity_kept < min(before, max(limits("class_kept"))):
        return Verdict(
            False, "class kept", f"the new caption has no word for the class: similarity {similarity_kept:.2f}"
        )
    if scores.get("other_class", 0.0) >= min(limits("other_class")):
        return Verdict(False, "other class", f"the change adds another class: similarity {scores['other_class']:.2f}")
    if scores.get("paraphrase", 0.0) >= min(limits("paraphrase")):
        return Verdict(False, "paraphrase", f"the new phrase means the same as the old one: {scores['paraphrase']:.2f}")
    return None


def similarities(
    services: TextEmbedder, source: MethodImage, task: TaskDescription, edits: Sequence[Edit]
) -> list[Scores]:
    """The similarities of each proposed edit of one source image. Each is the greatest over all compared phrases.

    class_words   changed words and the names of the ground truth (without ground truth, of all classes)
    class_before  old caption and these names
    class_kept    new caption and these names
    other_class   new words and the other classes that the old caption does not name
    paraphrase    new phrase and old phrase

    A score without phrases to compare is missing.
    """
    other_classes = [label for label in task.classes if label != source.ground_truth]
    labels = [source.ground_truth] if source.ground_truth else other_classes  # without it, no class may be touched
    of_edits = [_comparisons(edit, labels, other_classes) for edit in edits]
    vectors = _embed(services, of_edits, {*labels, *other_classes})
    scores_of_edits = []
    for comparisons in of_edits:
        scores: Scores = {}
        for comparison in comparisons:
            score = comparison.score
            scores[score] = max(comparison.similarity(vectors), scores.get(score, -1.0))
        scores_of_edits.append(scores)
    return scores_of_edits


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The phrases and names that a score compares, all pairs of them; neither is empty."""

    score: str
    phrases: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether a phrase and a name have equal stems, so that no embedding is needed."""
        return bool({tuple(stems(phrase)) for phrase in self.phrases} & {tuple(stems(name)) for name in self.names})

    def similarity(self, vectors: Mapping[str, Vector]) -> float:
        """The greatest similarity of a phrase and a name; below 1 unless stems are equal."""
        if self.plain:
            return 1.0
        phrases, names = (np.stack([vectors[text] for text in texts]) for texts in (self.phrases, self.names))
        return float(min((phrases @ names.T).max(), 0.9999))


def _comparisons(edit: Edit, labels: Sequence[str], other_classes: Sequence[str]) -> list[_Comparison]:
    """The comparisons of an edit's scores. `other_class` leaves out classes that the old caption names."""
    names, entering = _names(labels), _names(label for label in other_classes if not names_class(edit.caption, label))
    longest = max([LONGEST_GRAM, *(len(stems(name)) for name in (*names, *entering))])
    parts = [differing_part(change.from_phrase, change.to_phrase) for change in edit.changes]
    brought_in = [*_new_labels(edit.caption, edit.new_caption), *(new for _, new in parts)]
    comparisons = [
        _Comparison("class_words", _grams([phrase for part in parts for phrase in part], longest), names),
        _Comparison("class_before", _grams([edit.caption], longest), names),
        _Comparison("class_kept", _grams([edit.new_caption], longest), names),
        _Comparison("other_class", _grams(brought_in, longest), entering),
        *(_Comparison("paraphrase", (old,), (new,)) for old, new in parts if content_stems(old) and content_stems(new)),
    ]
    return [comparison for comparison in comparisons if comparison.phrases and comparison.names]


def _names(labels: Iterable[str]) -> tuple[str, ...]:
    """The names of labels (separated by commas) and their head nouns."""
    names = [name.strip() for label in labels for name in label.split(",") if name.strip()]
    return tuple(dict.fromkeys([*names, *(name.split()[-1] for name in names)]))


def _grams(texts: Iterable[str], longest: int) -> tuple[str, ...]:
    """Up to `longest` words in a row that begin and end with a content word, in lower case."""
    grams: dict[str, None] = {}
    for text in texts:
        words = [word.lower() for word in WORD.findall(text)]
        for start, word in enumerate(words):
            for end in range(start + 1, min(start + longest, len(words)) + 1):
                if not STOP_WORD.fullmatch(word) and not STOP_WORD.fullmatch(words[end - 1]):
                    grams[" ".join(words[start:end])] = None
    return tuple(grams)


def _new_labels(old: str, new: str) -> Iterator[str]:
    """The runs of words that the new text adds to the old one."""
    old_words, new_words = WORD.findall(old.lower()), WORD.findall(new.lower())
    for kind, _, _, start, end in SequenceMatcher(None, old_words, new_words, autojunk=False).get_opcodes():
        if kind in ("replace", "insert"):
            yield " ".join(new_words[start:end])


def _embed(services: TextEmbedder, of_edits: Sequence[Sequence[_Comparison]], labels: set[str]) -> dict[str, Vector]:
    """Embeddings of all compared phrases. Class names are requested first, because they are equal for every image."""
    needed = [comparison for comparisons in of_edits for comparison in comparisons if not comparison.plain]
    names = sorted(_names(labels)) if needed else []
    phrases = dict.fromkeys(text for comparison in needed for text in (*comparison.phrases, *comparison.names))
    vectors: dict[str, Vector] = {}
    for group in (names, [text for text in phrases if text not in set(names)]):
        for texts in chunks(group, MAX_TEXTS):
            rows = services.embed_texts(EmbedTextsRequest(texts=texts)).texts
            vectors.update(zip(texts, map(np.asarray, rows), strict=True))
    return vectors
