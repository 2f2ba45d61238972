"""How well the text checks tell right edits from wrong ones: `python -m tinyworld.measure.text_checks`.

Edits of captions from tinyworld's grammar whose fault is known because it was asked for. Right: another value in place
of one (also where the class is named by a synonym), another thing in place of the companion. Wrong: another phrase of
the same value, the class replaced (named by itself, a synonym or its kind), the class lost while something else
changes, or another class brought in. Captions have withheld sentences and phrases, and about half of the pairs of
phrases that decide are such as the text embedder never saw compared. Precision: of the edits let through, those that
are right. Recall: of the right ones, those let through.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from evaluator_service.similarity import TextEmbedder
from gateway.methods.counterfactual import Change, Edit, SourceImage, TaskDescription
from gateway.methods.text_checks import check_texts
from shared.images import encode
from shared.profiles import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedTextsReply, EmbedTextsRequest
from tinyworld.measure.language import rate
from tinyworld.objects.captions import Description, Mention, describe
from tinyworld.objects.phrases import SLOTS, slot_of, with_articles
from tinyworld.objects.thesaurus import KINDS, THINGS, Meaning, meanings, withheld_pair
from tinyworld.objects.world import CLASSES, EDIT_FACTOR, Split, sample_scene

TASK = TaskDescription("classify the object", CLASSES)
BLANK = ImagePayload(png=encode(np.zeros((8, 8, 3), np.uint8)))
_MEANINGS = {(one.field, one.value): one for one in meanings()}


@dataclass(frozen=True, slots=True)
class Case:
    """An edit, whether it is right, of which sort, and whether training withheld what decides."""

    sort: str
    right: bool
    label: str
    edit: Edit
    withheld: bool


@dataclass(frozen=True, slots=True)
class _Said:
    """A caption to be edited, and what draws the edit."""

    description: Description
    label: str
    random: Random

    def mention(self, *fields: str) -> Mention | None:
        """One of the phrases that state such fields."""
        found = [mention for mention in self.description.mentions if mention.field in fields]
        return self.random.choice(found) if found else None

    def pick(self, phrases: Sequence[str], than: str) -> str | None:
        """A phrase other than `than`; half of the draws are for pairs that training withheld, where there are any."""
        wanted = self.random.random() < 0.5
        choices = [phrase for phrase in phrases if phrase != than]
        return self.random.choice([p for p in choices if withheld_pair(p, than) == wanted] or choices or [""]) or None


def _case(said: _Said, sort: str, right: bool, changed: Mention, new: str, pair: tuple[str, str]) -> Case:
    factor = EDIT_FACTOR.get(changed.field, "subject")
    change = Change(factor, changed.phrase, new, changed.phrase, new)  # type: ignore[arg-type]
    caption = said.description.text
    edit = Edit((change,), caption, _replaced(caption, changed.phrase, new))
    return Case(sort, right, said.label, edit, withheld_pair(*pair))


def _replaced(text: str, old: str, new: str) -> str:
    return with_articles(re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", new, text))


def _other_value(said: _Said) -> Case | None:
    mention = said.mention(*EDIT_FACTOR)
    if mention is None:
        return None
    wordings = SLOTS[slot_of(mention.phrase, field=mention.field)].wordings
    new = said.pick([p for value, w in wordings.items() if value != mention.value for p in w.all], mention.phrase)
    return _case(said, "another value", True, mention, new, (mention.phrase, new)) if new else None


def _other_thing(said: _Said) -> Case | None:
    mention = said.mention("companion")
    if mention is None:
        return None
    thing = said.random.choice(THINGS)
    return _case(said, "another thing", True, mention, thing, (thing, said.label))


def _by_synonym(said: _Said) -> Case | None:
    synonym = said.pick(_MEANINGS["label", said.label].phrases, said.label)
    made = _other_value(said)
    if synonym is None or made is None:
        return None
    edit = Edit(made.edit.changes, made.edit.caption, _replaced(made.edit.new_caption, said.label, synonym))
    pair = withheld_pair(synonym, said.label)
    return Case("another value, class by a synonym", True, said.label, edit, pair)


def _paraphrase(said: _Said) -> Case | None:
    mention = said.mention(*EDIT_FACTOR)
    if mention is None:
        return None
    slot = SLOTS[slot_of(mention.phrase, field=mention.field)]
    new = said.pick(slot.wordings[mention.value].all, mention.phrase)
    return _case(said, "paraphrase", False, mention, new, (mention.phrase, new)) if new else None


def _class_goes(said: _Said) -> Case | None:
    own = _MEANINGS["label", said.label]
    name = said.random.choice([*own.phrases, *_kinds(own)])
    renamed = Description(_replaced(said.description.text, said.label, name), (Mention("label", said.label, name),))
    there = _Said(renamed, said.label, said.random)
    return _case(there, "class replaced", False, renamed.mentions[0], said.random.choice(THINGS), (name, said.label))


def _class_lost(said: _Said) -> Case | None:
    made = _other_value(said)
    own = _MEANINGS["label", said.label]
    instead = said.random.choice(_kinds(own) or THINGS)
    if made is None:
        return None
    edit = Edit(made.edit.changes, made.edit.caption, _replaced(made.edit.new_caption, said.label, instead))
    return Case("class lost", False, said.label, edit, withheld_pair(instead, said.label))


def _other_class(said: _Said) -> Case | None:
    mention = said.mention("companion")
    if mention is None:
        return None
    other = said.random.choice([label for label in CLASSES if label != said.label])
    meaning = _MEANINGS["label", other]
    new = said.random.choice([*meaning.phrases, *_kinds(meaning)])
    return _case(said, "another class", False, mention, new, (new, other))


def _kinds(meaning: Meaning) -> list[str]:
    return [phrase for kind in meaning.kinds for phrase in KINDS[kind][0]]


SORTS: tuple[Callable[[_Said], Case | None], ...] = (
    _other_value, _other_thing, _by_synonym, _paraphrase, _class_goes, _class_lost, _other_class,
)  # fmt: skip


def cases(split: Split, each: int) -> list[Case]:
    """So many cases of every sort, from captions of a split."""
    found: list[Case] = []
    for number, sort in enumerate(SORTS):
        index, wanted = 0, len(found) + each
        while len(found) < wanted:
            random = Random(f"{split}/{number}/{index}")
            scene = sample_scene(split, number * 100_000 + index)
            said = _Said(describe(scene, random.randrange(2**31), withheld="phrases too"), scene.label, random)
            index += 1
            if made := sort(said):
                found.append(made)
    return found


class ShippedEmbedder:
    """The text embedder of a profile, in this process."""

    def __init__(self, profile: str) -> None:
        weights = load_profile(profile).evaluator.text_embedder
        if weights is None:
            raise SystemExit(f"profile {profile!r} has no [evaluator.text_embedder]; there is nothing to measure")
        self._model = TextEmbedder(weights, device="cpu")

    def embed_texts(self, request: EmbedTextsRequest) -> EmbedTextsReply:
        """What the service would answer."""
        rows = [self._model.tokens(text) for text in request.texts]
        return EmbedTextsReply(
            texts=[self._model.embed([row], self._model.padded(len(row)))[0].tolist() for row in rows]
        )


def judged(made: Sequence[Case], profile: str) -> list[tuple[Case, str, dict[str, float]]]:
    """Each case with the check that refused it ("" for none) and its scores, under the profile's thresholds."""
    services, thresholds = ShippedEmbedder(profile), load_profile(profile).text_thresholds
    found = []
    for one in made:
        [(verdict, scores)] = check_texts(services, SourceImage("", BLANK, one.label), TASK, [one.edit], thresholds)
        found.append((one, verdict.check, scores))
    return found


def main() -> None:
    """Print precision and recall, and the right decisions of every sort."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", default="tiny", help="a shipped profile, or the path of a TOML file")
    parser.add_argument("--split", default="final-test", choices=("final-test", "calibration"))
    parser.add_argument("--each", type=int, default=100, help="cases of each of the seven sorts")
    parser.add_argument("--show", action="store_true", help="print the cases that were decided wrongly")
    options = parser.parse_args()
    found = judged(cases(options.split, options.each), options.profile)
    for name, part in {"all": found, "decided by a withheld pair": [one for one in found if one[0].withheld]}.items():
        let_through = [case for case, check, _ in part if not check]
        right = [not check for case, check, _ in part if case.right]
        print(f"{name}: n = {len(part)}; precision {rate(sum(c.right for c in let_through), len(let_through))}; "
              f"recall {rate(sum(right), len(right))}")  # fmt: skip
    for sort in dict.fromkeys(case.sort for case, _, _ in found):
        own = [(case.right, check) for case, check, _ in found if case.sort == sort]
        print(f"{sort}: decided rightly {rate(sum(right == (not check) for right, check in own), len(own))}")
    for case, check, scores in found if options.show else ():
        if case.right == bool(check):
            (change,) = case.edit.changes
            told = {name: round(score, 2) for name, score in scores.items()}
            print(f"{case.sort} [{check}] {change.from_phrase} -> {change.to_phrase}: {case.edit.new_caption} {told}")


if __name__ == "__main__":
    main()
