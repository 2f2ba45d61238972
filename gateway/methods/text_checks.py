"""Checks of proposed edits by their words alone, before anything is rendered. Pure functions of strings.

Each refusal is a rejected `Verdict` that names its check; None means that the check has nothing to object.
Words are compared by stem ("foggy" touches the class "fog", "buses" the class "bus").
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from gateway.methods.counterfactual import Change, Verdict

_WORD = re.compile(r"[^\W\d_]+|\d+")
_STOP_WORD = re.compile(r"(?i)a|an|and|at|by|for|from|in|is|it|its|of|on|or|the|there|this|to|with")
# Words that name a protected characteristic of people: an edit must never bring one in.
_PROTECTED = re.compile(
    r"(?i)races?|racial|ethnic|african|asian|arab|caucasian|hispanic|latin[oa]|jew|jewish|muslim|islamic|christian|hindu|"
    r"buddhist|sikh|gay|lesbian|bisexual|transgender|disabled|disability|blind|deaf|wheelchair|pregnant|elderly|"
    r"(fe)?male|(wo)?m[ae]n|boys?|girls?|gentlem[ae]n|lady|ladies"
)
_PEOPLE = "person|people|pedestrian|child|children|adult|worker|passer-by|crowd|rider|driver|player"
_SKIN = re.compile(rf"\b(black|white|brown|dark-skinned|light-skinned)\s+({_PEOPLE})\b")
_SUFFIXES = ("ing", "ed", "ly", "y")


def stem(word: str) -> str:
    """A crude English stem: plural, -ing, -ed, -ly, -y, a doubled last consonant and a final -e are dropped."""
    word = word.lower()
    if word.endswith("ies") and len(word) > 5:
        word = word[:-3] + "y"
    elif re.search(r"(s|x|z|ch|sh)es$", word) and len(word) > 4:
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us")) and len(word) > 3:
        word = word[:-1]
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    if len(word) > 3 and word[-1] == word[-2]:
        word = word[:-1]
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def stems(text: str) -> list[str]:
    """Stems of the words of a text, in order."""
    return [stem(word) for word in _WORD.findall(text)]


def content_stems(text: str) -> set[str]:
    """Stems of the words that carry meaning: no articles, prepositions or forms of "be"."""
    return {stem(word) for word in _WORD.findall(text) if not _STOP_WORD.fullmatch(word)}


def names_class(text: str, label: str) -> bool:
    """Whether a text has all words of one of the label's names (separated by commas) in a row."""
    words = stems(text)
    for name in label.split(","):
        wanted = stems(name)
        if wanted and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1)):
            return True
    return False


def occurrences(text: str, phrase: str) -> int:
    """How often a phrase stands in a text as whole words, whatever the case."""
    return len(re.findall(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", text, re.IGNORECASE)) if phrase.strip() else 0


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
            return _refused("other class", f"“{change.to_phrase}” brings in the class “{label}”")
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
            return _refused("other class", f"the new caption brings in the class “{label}”")
    return _check_protected(new_caption, caption)


def _check_protected(new: str, old: str) -> Verdict | None:
    """Whether words brought in name a protected characteristic of people."""
    brought_in = {word.lower() for word in _WORD.findall(new)} - {word.lower() for word in _WORD.findall(old)}
    if found := sorted(word for word in brought_in if _PROTECTED.fullmatch(word)):
        return _refused("protected class", f"the new words name a protected characteristic: {', '.join(found)}")
    skin = _SKIN.search(new.lower())
    if skin and not _SKIN.search(old.lower()):
        return _refused("protected class", f"“{skin[0]}” may name a protected characteristic")
    return None


def _refused(check: str, reason: str) -> Verdict:
    return Verdict(accepted=False, check=check, reason=reason)
