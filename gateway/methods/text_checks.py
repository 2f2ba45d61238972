"""Checks of proposed edits by their words, before anything is rendered: by stems, and by what the words mean.

Each refusal is a rejected `Verdict` that names its check; None means that the check has nothing to object. The checks
by stems are pure functions of strings ("foggy" touches the class "fog", "buses" the class "bus"). `check_texts` adds
LANCE's, which compare phrases by their sentence embeddings ("automobile" touches the class "car"):

class words   neither the phrase that goes nor the one that comes is similar to the ground truth
class kept    where the caption names the ground truth, the new one still has it, its head noun or a synonym
other class   no word that comes is similar to another class of the label set
paraphrase    the new phrase does not say what the old one said
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import Protocol

import numpy as np

from gateway.methods.checks import Scores, Thresholds, Vector
from gateway.methods.counterfactual import Change, Edit, MethodImage, TaskDescription, Verdict
from gateway.methods.words import PEOPLE, STOP_WORD, WORD, content_stems, in_captions, names_class, occurrences, stems
from shared.schemas.evaluation import EmbedTextsReply, EmbedTextsRequest

# Words that name a protected characteristic of people: an edit must never bring one in.
_PROTECTED = re.compile(
    r"(?i)races?|racial|ethnic|african|asian|arab|caucasian|hispanic|latin[oa]|jew|jewish|muslim|islamic|christian|hindu|"
    r"buddhist|sikh|gay|lesbian|bisexual|transgender|disabled|disability|blind|deaf|wheelchair|pregnant|elderly|"
    r"(fe)?male|(wo)?m[ae]n|boys?|girls?|gentlem[ae]n|lady|ladies"
)
_SKIN = re.compile(rf"\b(black|white|brown|dark-skinned|light-skinned)\s+({PEOPLE})\b")
LONGEST_GRAM = 3  # words that are compared together, or as many as the longest name of a class has
MAX_TEXTS = 256  # per message


def check_keyword(phrase: str, caption: str, ground_truth: str | None, classes: Sequence[str]) -> Verdict | None:
    """Whether a phrase may be changed at all: it stands in the caption and names no class."""
    if not occurrences(caption, phrase):
        return _refused("keyword in caption", f"the caption does not contain “{phrase}”")
    if ground_truth is not None and content_stems(phrase) & content_stems(ground_truth):
        return _refused("class words", f"“{phrase}” touches the ground truth “{ground_truth}”")
    for label in classes:
        if names_class(phrase, label):
            return _refused("class words", f"“{phrase}” names the class “{label}”")
    return None


def check_change(change: Change, ground_truth: str | None, classes: Sequence[str]) -> Verdict | None:
    """Whether the new phrase of a change is new, and neither a class nor a protected class."""
    old, new = content_stems(change.from_phrase), content_stems(change.to_phrase)
    same_value = content_stems(change.from_value) == content_stems(change.to_value)
    if same_value or old == new:
        return _refused("no change", f"“{change.to_phrase}” says the same as “{change.from_phrase}”")
    if ground_truth is not None and new & content_stems(ground_truth):
        return _refused("class words", f"“{change.to_phrase}” touches the ground truth “{ground_truth}”")
    for label in classes:
        if names_class(change.to_phrase, label):
            return _refused("other class", f"“{change.to_phrase}” adds the class “{label}”")
    return _check_protected(change.to_phrase, change.from_phrase)


def check_caption(
    changes: Iterable[Change], caption: str, new_caption: str, ground_truth: str | None, classes: Sequence[str]
) -> Verdict | None:
    """Whether a rewritten caption applies all changes, keeps the class, and brings in no other class."""
    if caption.split() == new_caption.split():
        return _refused("caption unchanged", "the new caption is the old one")
    for change in changes:
        if not occurrences(new_caption, change.to_phrase):
            return _refused("change applied", f"the new caption does not contain “{change.to_phrase}”")
        kept_inside = occurrences(change.to_phrase, change.from_phrase)
        if not kept_inside and occurrences(new_caption, change.from_phrase) >= occurrences(caption, change.from_phrase):
            return _refused("change applied", f"the new caption still contains “{change.from_phrase}”")
    if ground_truth is not None and names_class(caption, ground_truth) and not names_class(new_caption, ground_truth):
        return _refused("class kept", f"the new caption lost the ground truth “{ground_truth}”")
    for label in classes:
        if label != ground_truth and names_class(new_caption, label) and not names_class(caption, label):
            return _refused("other class", f"the new caption adds the class “{label}”")
    return _check_protected(new_caption, caption)


def check_protected_classes(
    changes: Iterable[Change], caption: str, new_caption: str, protect: Sequence[str]
) -> Verdict | None:
    """Whether an edit leaves protected classes (a segmenter's labels) unnamed, and the caption's words for them."""
    for label in protect:
        names = in_captions(label)
        for change in changes:
            for phrase in (change.from_phrase, change.to_phrase):
                if names_class(phrase, names):
                    return _refused("protected class", f"“{phrase}” names what is protected, “{label}”")
        if names_class(caption, names) != names_class(new_caption, names):
            verb = "lost" if names_class(caption, names) else "brings in"
            return _refused("protected class", f"the new caption {verb} a word for what is protected, “{label}”")
    return None


class TextEmbedder(Protocol):
    """The one service that `check_texts` asks."""

    def embed_texts(self, request: EmbedTextsRequest) -> EmbedTextsReply: ...


def check_texts(
    services: TextEmbedder, source: MethodImage, task: TaskDescription, edits: Sequence[Edit], thresholds: Thresholds
) -> list[tuple[Verdict, Scores]]:
    """Verdict and scores of each proposed edit of one source image; no edit is rendered for this.

    Scores are similarities, 1 for equal stems and otherwise the cosine of two phrases' embeddings, the greatest over
    the phrases in question: `class_words`, `class_before` and `class_kept` (the captions' likeness to the ground
    truth), `other_class`, `paraphrase`. One that has nothing to compare is left out. `thresholds` (check -> factor or
    `default`, from the profile) refuse at or above, `class_kept` below; without threshold only equal stems count.
    """
    others = [label for label in task.classes if label != source.ground_truth]
    labels = [source.ground_truth] if source.ground_truth else others  # without it, no class may be touched
    of_edits = [_comparisons(edit, labels, others) for edit in edits]
    vectors = _embed(services, of_edits, {*labels, *others})
    results = []
    for edit, comparisons in zip(edits, of_edits, strict=True):
        scores: Scores = {}
        for comparison in comparisons:
            score = comparison.score
            scores[score] = max(comparison.similarity(vectors), scores.get(score, -1.0))
        verdict = _by_stems(edit, source.ground_truth, others) or _by_meaning(edit, scores, thresholds)
        results.append((verdict or Verdict(True), scores))
    return results


def differing_part(old: str, new: str) -> tuple[str, str]:
    """Two phrases without the words that they begin and end with in common ("red bus", "blue bus" → "red", "blue")."""
    old_words, new_words = old.split(), new.split()
    while old_words and new_words and old_words[0].lower() == new_words[0].lower():
        old_words, new_words = old_words[1:], new_words[1:]
    while old_words and new_words and old_words[-1].lower() == new_words[-1].lower():
        old_words, new_words = old_words[:-1], new_words[:-1]
    return " ".join(old_words), " ".join(new_words)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """The phrases and names that a score compares, each with each; neither is empty."""

    score: str
    phrases: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def plain(self) -> bool:
        """Whether a phrase and a name have equal stems, so that no embedding is asked."""
        return bool({tuple(stems(phrase)) for phrase in self.phrases} & {tuple(stems(name)) for name in self.names})

    def similarity(self, vectors: Mapping[str, Vector]) -> float:
        """The greatest similarity of a phrase and a name; below 1 unless stems are equal."""
        if self.plain:
            return 1.0
        phrases, names = (np.stack([vectors[text] for text in texts]) for texts in (self.phrases, self.names))
        return float(min((phrases @ names.T).max(), 0.9999))


def _comparisons(edit: Edit, labels: Sequence[str], others: Sequence[str]) -> list[_Comparison]:
    """What the scores of an edit compare. Classes that the caption names already cannot enter."""
    names, entering = _names(labels), _names(label for label in others if not names_class(edit.caption, label))
    longest = max([LONGEST_GRAM, *(len(stems(name)) for name in (*names, *entering))])
    parts = [differing_part(change.from_phrase, change.to_phrase) for change in edit.changes]
    brought_in = [*_brought_in(edit.caption, edit.new_caption), *(new for _, new in parts)]
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
    """Up to `longest` words in a row that neither begin nor end with a word without meaning, in lower case."""
    grams: dict[str, None] = {}
    for text in texts:
        words = [word.lower() for word in WORD.findall(text)]
        for start, word in enumerate(words):
            for end in range(start + 1, min(start + longest, len(words)) + 1):
                if not STOP_WORD.fullmatch(word) and not STOP_WORD.fullmatch(words[end - 1]):
                    grams[" ".join(words[start:end])] = None
    return tuple(grams)


def _brought_in(old: str, new: str) -> Iterator[str]:
    """The runs of words that the new text has and the old one has not there."""
    old_words, new_words = WORD.findall(old.lower()), WORD.findall(new.lower())
    for kind, _, _, start, end in SequenceMatcher(None, old_words, new_words, autojunk=False).get_opcodes():
        if kind in ("replace", "insert"):
            yield " ".join(new_words[start:end])


def _embed(services: TextEmbedder, of_edits: Sequence[Sequence[_Comparison]], labels: set[str]) -> dict[str, Vector]:
    """Embeddings of all phrases that comparisons need. Names of classes go first, in messages that recur."""
    needed = [comparison for comparisons in of_edits for comparison in comparisons if not comparison.plain]
    names = sorted(_names(labels)) if needed else []
    phrases = dict.fromkeys(text for comparison in needed for text in (*comparison.phrases, *comparison.names))
    vectors: dict[str, Vector] = {}
    for group in (names, [text for text in phrases if text not in set(names)]):
        for start in range(0, len(group), MAX_TEXTS):
            texts = group[start : start + MAX_TEXTS]
            rows = services.embed_texts(EmbedTextsRequest(texts=texts)).texts
            vectors.update(zip(texts, map(np.asarray, rows), strict=True))
    return vectors


def _by_stems(edit: Edit, ground_truth: str | None, others: Sequence[str]) -> Verdict | None:
    """What the words alone have against an edit; whether the class is kept is asked of their meaning."""
    for change in edit.changes:
        old, new = differing_part(change.from_phrase, change.to_phrase)
        if ground_truth is not None and content_stems(old) & content_stems(ground_truth):
            return _refused("class words", f"“{old}” touches the ground truth “{ground_truth}”")
        if refusal := check_change(replace(change, from_phrase=old, to_phrase=new), ground_truth, others):
            return refusal
    return check_caption(edit.changes, edit.caption, edit.new_caption, None, others)


def _by_meaning(edit: Edit, scores: Scores, thresholds: Thresholds) -> Verdict | None:
    """What the scores have against an edit, by the strictest of the thresholds of its factors."""

    def limits(check: str) -> list[float]:
        table = thresholds.get(check, {"default": 1.0})
        return [table.get(change.factor, table["default"]) for change in edit.changes]

    touching, kept = min(limits("class_words")), scores.get("class_kept", 1.0)
    if scores.get("class_words", 0.0) >= touching:
        return _refused("class words", f"the change touches the class: similarity {scores['class_words']:.2f}")
    before = scores.get("class_before", 0.0)
    if before >= touching and kept < min(before, max(limits("class_kept"))):
        return _refused("class kept", f"the new caption has no word for the class: similarity {kept:.2f}")
    if scores.get("other_class", 0.0) >= min(limits("other_class")):
        return _refused("other class", f"the change adds another class: similarity {scores['other_class']:.2f}")
    if scores.get("paraphrase", 0.0) >= min(limits("paraphrase")):
        return _refused("paraphrase", f"the new phrase means the same as the old one: {scores['paraphrase']:.2f}")
    return None


def _check_protected(new: str, old: str) -> Verdict | None:
    """Whether words brought in name a protected characteristic of people."""
    brought_in = {word.lower() for word in WORD.findall(new)} - {word.lower() for word in WORD.findall(old)}
    if protected := sorted(word for word in brought_in if _PROTECTED.fullmatch(word)):
        return _refused("protected class", f"the new words name a protected characteristic: {', '.join(protected)}")
    skin = _SKIN.search(new.lower())
    if skin and not _SKIN.search(old.lower()):
        return _refused("protected class", f"“{skin[0]}” may name a protected characteristic")
    return None


def _refused(check: str, reason: str) -> Verdict:
    return Verdict(accepted=False, check=check, reason=reason)
