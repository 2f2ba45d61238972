"""Checks of proposed edits by their words, before anything is rendered: pure functions of strings.

Each check returns a rejected `Verdict` that names it, or None. Words are compared by their stems ("foggy" touches the
class "fog", "buses" the class "bus"). LANCE also compares their meaning (`similarity.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.methods.counterfactual import Change, Edit, TaskDescription, Verdict
from gateway.methods.people import check_people
from gateway.methods.words import content_stems, in_captions, names_class, occurrences


def check_keyword(phrase: str, caption: str, ground_truth: str | None, classes: Sequence[str]) -> Verdict | None:
    """Refuse a phrase that is not in the caption, or names a class."""
    if not occurrences(caption, phrase):
        return _refuse("keyword in caption", f"the caption does not contain “{phrase}”")
    if ground_truth is not None and content_stems(phrase) & content_stems(ground_truth):
        return _refuse("class words", f"“{phrase}” touches the ground truth “{ground_truth}”")
    for label in classes:
        if names_class(phrase, label):
            return _refuse("class words", f"“{phrase}” names the class “{label}”")
    return None


def check_change(change: Change, ground_truth: str | None, classes: Sequence[str]) -> Verdict | None:
    """Refuse a new phrase that equals the old one, or names a class."""
    old, new = content_stems(change.from_phrase), content_stems(change.to_phrase)
    same_value = content_stems(change.from_value) == content_stems(change.to_value)
    if same_value or old == new:
        return _refuse("no change", f"“{change.to_phrase}” says the same as “{change.from_phrase}”")
    if ground_truth is not None and new & content_stems(ground_truth):
        return _refuse("class words", f"“{change.to_phrase}” touches the ground truth “{ground_truth}”")
    for label in classes:
        if names_class(change.to_phrase, label):
            return _refuse("other class", f"“{change.to_phrase}” adds the class “{label}”")
    return None


def check_caption(
    changes: Iterable[Change], caption: str, new_caption: str, ground_truth: str | None, classes: Sequence[str]
) -> Verdict | None:
    """Refuse a new caption that does not apply all changes, loses the class, or adds another class."""
    if caption.split() == new_caption.split():
        return _refuse("caption unchanged", "the new caption is the old one")
    for change in changes:
        if not occurrences(new_caption, change.to_phrase):
            return _refuse("change applied", f"the new caption does not contain “{change.to_phrase}”")
        removed = change.from_phrase and not occurrences(change.to_phrase, change.from_phrase)
        if removed and occurrences(new_caption, change.from_phrase) >= occurrences(caption, change.from_phrase):
            return _refuse("change applied", f"the new caption still contains “{change.from_phrase}”")
    if ground_truth is not None and names_class(caption, ground_truth) and not names_class(new_caption, ground_truth):
        return _refuse("class kept", f"the new caption lost the ground truth “{ground_truth}”")
    for label in classes:
        if label != ground_truth and names_class(new_caption, label) and not names_class(caption, label):
            return _refuse("other class", f"the new caption adds the class “{label}”")
    return None


def check_stems(edit: Edit, ground_truth: str | None, other_classes: Sequence[str]) -> Verdict | None:
    """Refuse an edit as `check_change` and `check_caption` do, except for a lost class (`check_meaning`)."""
    for change in edit.changes:
        old, new = differing_part(change.from_phrase, change.to_phrase)
        if ground_truth is not None and content_stems(old) & content_stems(ground_truth):
            return _refuse("class words", f"“{old}” touches the ground truth “{ground_truth}”")
        if refusal := check_change(replace(change, from_phrase=old, to_phrase=new), ground_truth, other_classes):
            return refusal
    return check_caption(edit.changes, edit.caption, edit.new_caption, None, other_classes)


def check_instruction(instruction: str, caption: str, classes: Sequence[str]) -> Verdict | None:
    """Refuse an instruction that names a class that the caption does not."""
    for label in classes:
        if names_class(instruction, label) and not names_class(caption, label):
            return _refuse("other class", f"the instruction adds the class “{label}”")
    return None


def check_protected(edit: Edit, task: TaskDescription, protect: Sequence[str]) -> Verdict | None:
    """Refuse an edit that names a protected class (a segmenter's label), or adds or removes a word for it.

    Also refuses one that changes a protected characteristic of people (`check_people`).
    """
    for label in protect:
        names = in_captions(label)
        for change in edit.changes:
            for phrase in (change.from_phrase, change.to_phrase):
                if names_class(phrase, names):
                    return _refuse("protected class", f"“{phrase}” names what is protected, “{label}”")
        if names_class(edit.caption, names) != names_class(edit.new_caption, names):
            verb = "lost" if names_class(edit.caption, names) else "brings in"
            return _refuse("protected class", f"the new caption {verb} a word for what is protected, “{label}”")
    return check_people(edit, task)


def differing_part(old: str, new: str) -> tuple[str, str]:
    """Two phrases without their common first and last words ("red bus", "blue bus" → "red", "blue")."""
    old_words, new_words = old.split(), new.split()
    while old_words and new_words and old_words[0].lower() == new_words[0].lower():
        old_words, new_words = old_words[1:], new_words[1:]
    while old_words and new_words and old_words[-1].lower() == new_words[-1].lower():
        old_words, new_words = old_words[:-1], new_words[:-1]
    return " ".join(old_words), " ".join(new_words)


def _refuse(check: str, reason: str) -> Verdict:
    return Verdict(accepted=False, check=check, reason=reason)
