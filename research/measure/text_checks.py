"""Measure how well the text checks separate correct from wrong edits: `python -m research.measure.text_checks`.

It uses edits of captions from tinyworld's grammar whose fault is known by construction. Right: another value replaces
one (also if the class is named by a synonym), or another thing replaces the companion. Wrong: another phrase of the
same value, the class replaced (named by itself, a synonym or its kind), the class lost while something else changes, or
another class added. Captions have withheld sentences and phrases, and about half of the decisive pairs of phrases were
never compared in the text embedder's training. Precision: the share of right edits among the accepted. Recall: the
share of accepted edits among the right ones.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from evaluator_service.similarity import TextEmbedder
from gateway.methods.counterfactual import Change, Edit, MethodImage, TaskDescription
from gateway.methods.similarity import check_texts
from research.objects.thesaurus import KINDS, THINGS, Meaning, meanings, withheld_pair
from research.statistics.rates import fraction_text
from shared.media.images import encode
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedTextsReply, EmbedTextsRequest
from tinyworld.domain.descriptions import Description, Mention
from tinyworld.domain.scenes import Split
from tinyworld.domain.wording import slot_of, with_articles
from tinyworld.objects.captions import describe
from tinyworld.objects.phrases import SLOTS
from tinyworld.objects.world import CLASSES, EDIT_FACTOR, sample_scene

TASK = TaskDescription("classify the object", CLASSES)
BLANK = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))
_MEANINGS = {(meaning.field, meaning.value): meaning for meaning in meanings()}


@dataclass(frozen=True, slots=True)
class Case:
    """An edit, whether it is right, its sort, and whether training withheld the decisive pair of phrases."""

    sort: str
    right: bool
    label: str
    edit: Edit
    withheld: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A caption to edit, its class, and the random generator of the edit."""

    description: Description
    label: str
    random: Random

    def mention(self, *fields: str) -> Mention | None:
        """A random phrase that states one of the fields."""
        candidates = [mention for mention in self.description.mentions if mention.field in fields]
        return self.random.choice(candidates) if candidates else None

    def pick(self, phrases: Sequence[str], than: str) -> str | None:
        """A phrase other than `than`. Half of the samples are pairs that training withheld, if there are any."""
        prefer_withheld = self.random.random() < 0.5
        choices = [phrase for phrase in phrases if phrase != than]
        return (
            self.random.choice([p for p in choices if withheld_pair(p, than) == prefer_withheld] or choices or [""])
            or None
        )


def _case(source: _Source, sort: str, right: bool, changed: Mention, new: str, pair: tuple[str, str]) -> Case:
    factor = EDIT_FACTOR.get(changed.field, "subject")
    change = Change(factor, changed.phrase, new, changed.phrase, new)  # type: ignore[arg-type]
    caption = source.description.text
    edit = Edit((change,), caption, _replace(caption, changed.phrase, new))
    return Case(sort, right, source.label, edit, withheld_pair(*pair))


def _replace(text: str, old: str, new: str) -> str:
    return with_articles(re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, text))


def _other_value(source: _Source) -> Case | None:
    mention = source.mention(*EDIT_FACTOR)
    if mention is None:
        return None
    wordings = SLOTS[slot_of(mention.phrase, SLOTS, field=mention.field)].wordings
    new = source.pick([p for value, w in wordings.items() if value != mention.value for p in w.all], mention.phrase)
    return _case(source, "another value", True, mention, new, (mention.phrase, new)) if new else None


def _other_thing(source: _Source) -> Case | None:
    mention = source.mention("companion")
    if mention is None:
        return None
    thing = source.random.choice(THINGS)
    return _case(source, "another thing", True, mention, thing, (thing, source.label))


def _by_synonym(source: _Source) -> Case | None:
    synonym = source.pick(_MEANINGS["label", source.label].phrases, source.label)
    case = _other_value(source)
    if synonym is None or case is None:
        return None
    edit = Edit(case.edit.changes, case.edit.caption, _replace(case.edit.new_caption, source.label, synonym))
    pair = withheld_pair(synonym, source.label)
    return Case("another value, class by a synonym", True, source.label, edit, pair)


def _paraphrase(source: _Source) -> Case | None:
    mention = source.mention(*EDIT_FACTOR)
    if mention is None:
        return None
    slot = SLOTS[slot_of(mention.phrase, SLOTS, field=mention.field)]
    new = source.pick(slot.wordings[mention.value].all, mention.phrase)
    return _case(source, "paraphrase", False, mention, new, (mention.phrase, new)) if new else None


def _class_goes(source: _Source) -> Case | None:
    meaning = _MEANINGS["label", source.label]
    name = source.random.choice([*meaning.phrases, *_kinds(meaning)])
    renamed = Description(
        _replace(source.description.text, source.label, name), (Mention("label", source.label, name),)
    )
    renamed_source = _Source(renamed, source.label, source.random)
    return _case(
        renamed_source, "class replaced", False, renamed.mentions[0], source.random.choice(THINGS), (name, source.label)
    )


def _class_lost(source: _Source) -> Case | None:
    case = _other_value(source)
    meaning = _MEANINGS["label", source.label]
    instead = source.random.choice(_kinds(meaning) or THINGS)
    if case is None:
        return None
    edit = Edit(case.edit.changes, case.edit.caption, _replace(case.edit.new_caption, source.label, instead))
    return Case("class lost", False, source.label, edit, withheld_pair(instead, source.label))


def _other_class(source: _Source) -> Case | None:
    mention = source.mention("companion")
    if mention is None:
        return None
    other_label = source.random.choice([label for label in CLASSES if label != source.label])
    meaning = _MEANINGS["label", other_label]
    new = source.random.choice([*meaning.phrases, *_kinds(meaning)])
    return _case(source, "another class", False, mention, new, (new, other_label))


def _kinds(meaning: Meaning) -> list[str]:
    return [phrase for kind in meaning.kinds for phrase in KINDS[kind][0]]


SORTS: tuple[Callable[[_Source], Case | None], ...] = (
    _other_value, _other_thing, _by_synonym, _paraphrase, _class_goes, _class_lost, _other_class,
)  # fmt: skip


def cases(split: Split, per_sort: int) -> list[Case]:
    """`per_sort` cases of every sort, from captions of a split."""
    cases_of_split: list[Case] = []
    for number, sort in enumerate(SORTS):
        index, total = 0, len(cases_of_split) + per_sort
        while len(cases_of_split) < total:
            random = Random(f"{split}/{number}/{index}")
            scene = sample_scene(split, number * 100_000 + index)
            source = _Source(describe(scene, random.randrange(2**31), withheld="phrases too"), scene.label, random)
            index += 1
            if case := sort(source):
                cases_of_split.append(case)
    return cases_of_split


class ShippedEmbedder:
    """The text embedder of a profile, in this process."""

    def __init__(self, profile: str) -> None:
        weights = load_profile(profile).evaluator.text_embedder
        if weights is None:
            raise SystemExit(f"profile {profile!r} has no [evaluator.text_embedder]; there is nothing to measure")
        self._model = TextEmbedder(weights, device="cpu")

    def embed_texts(self, request: EmbedTextsRequest) -> EmbedTextsReply:
        """The reply of the service."""
        rows = [self._model.tokens(text) for text in request.texts]
        return EmbedTextsReply(
            texts=[self._model.embed([row], self._model.padded_length(len(row)))[0].tolist() for row in rows]
        )


def check_cases(all_cases: Sequence[Case], profile: str) -> list[tuple[Case, str, dict[str, float]]]:
    """Each case with the check that refused it ("" for none) and its scores, under the profile's thresholds."""
    services, thresholds = ShippedEmbedder(profile), load_profile(profile).text_thresholds
    results = []
    for case in all_cases:
        [(verdict, scores)] = check_texts(services, MethodImage("", BLANK, case.label), TASK, [case.edit], thresholds)
        results.append((case, verdict.check, scores))
    return results


def main() -> None:
    """Print precision and recall, and the right decisions of every sort."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="tiny", help="a shipped profile, or the path of a TOML file")
    parser.add_argument("--split", default="final-test", choices=("final-test", "calibration"))
    parser.add_argument("--each", type=int, default=100, help="cases of each of the seven sorts")
    parser.add_argument("--show", action="store_true", help="print the cases that were decided wrongly")
    options = parser.parse_args()
    results = check_cases(cases(options.split, options.each), options.profile)
    for name, part in {
        "all": results,
        "decided by a withheld pair": [result for result in results if result[0].withheld],
    }.items():
        let_through = [case for case, check, _ in part if not check]
        right = [not check for case, check, _ in part if case.right]
        precision = fraction_text(sum(case.right for case in let_through), len(let_through))
        print(f"{name}: n = {len(part)}; precision {precision}; recall {fraction_text(sum(right), len(right))}")
    for sort in dict.fromkeys(case.sort for case, _, _ in results):
        rows = [(case.right, check) for case, check, _ in results if case.sort == sort]
        print(f"{sort}: right {fraction_text(sum(right == (not refused) for right, refused in rows), len(rows))}")
    for case, check, scores in results if options.show else ():
        if case.right == bool(check):
            (change,) = case.edit.changes
            rounded = {name: round(score, 2) for name, score in scores.items()}
            print(
                f"{case.sort} [{check}] {change.from_phrase} -> {change.to_phrase}: {case.edit.new_caption} {rounded}"
            )


if __name__ == "__main__":
    main()
