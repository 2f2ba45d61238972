"""Words of captions and of labels, compared by crude stems: "foggy" names the class "fog", "buses" the class "bus".

The word diff of two captions: does the new one have the change that the language model claims, and no other?

LANCE's reference code reads the hint lines of `difflib.ndiff` instead ("woman ++").
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from gateway.methods.counterfactual import Edit, Verdict

_TOKEN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
_ARTICLES = ("a", "an", "the")  # ignored, because an article may change with the next word
WORD = re.compile(r"[^\W\d_]+|\d+")
STOP_WORD = re.compile(r"(?i)a|an|and|at|by|for|from|in|is|it|its|of|on|or|the|there|this|to|with")
PEOPLE = "person|people|pedestrian|child|children|adult|worker|passer-by|crowd|rider|driver|player"
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
    return [stem(word) for word in WORD.findall(text)]


def content_stems(text: str) -> set[str]:
    """Stems of the content words: no articles, prepositions or forms of "be"."""
    return {stem(word) for word in WORD.findall(text) if not STOP_WORD.fullmatch(word)}


def content_words(text: str) -> list[tuple[int, int]]:
    """Start and end of each content word of a text."""
    return [match.span() for match in WORD.finditer(text) if not STOP_WORD.fullmatch(match[0])]


def names_class(text: str, label: str) -> bool:
    """Whether a text has all words of one of the label's names (separated by commas) in a row."""
    words = stems(text)
    for name in label.split(","):
        name_stems = stems(name)
        if name_stems and any(
            words[i : i + len(name_stems)] == name_stems for i in range(len(words) - len(name_stems) + 1)
        ):
            return True
    return False


def occurrences(text: str, phrase: str) -> int:
    """How often a text has a phrase as whole words, in upper or lower case."""
    return len(re.findall(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", text, re.IGNORECASE)) if phrase.strip() else 0


# Segmenters' labels of people and vehicles, and the words that captions use for them.
_ANYBODY = PEOPLE.replace("|", ",") + ",man,men,woman,women,boy,girl,cyclist"
_IN_CAPTIONS = dict.fromkeys(map(stem, ("person", "people", "pedestrian", "rider")), _ANYBODY) | {
    stem("vehicle"): "vehicle,car,bus,truck,van,lorry,taxi,tram,motorcycle,motorbike,bicycle"
}


def in_captions(label: str) -> str:
    """The names of a segmenter's label, in the form of `names_class`, with the words that captions use for it."""
    return ",".join(_IN_CAPTIONS.get(stem(name), name) for name in label.split(",") if name.strip())


def tokens(text: str) -> list[str]:
    """Words (with hyphens and apostrophes) and punctuation marks, in lower case, without articles."""
    return [token for token in _TOKEN.findall(text.lower()) if token not in _ARTICLES]


def word_diff(old: str, new: str) -> list[tuple[str, str]]:
    """Removed and added runs of words and punctuation, in order; either may be empty.

    Articles and capitals are ignored.

    >>> word_diff("A well-kept car, by day.", "An old car, by night.")
    [('well-kept', 'old'), ('day', 'night')]
    """
    old_tokens, new_tokens = tokens(old), tokens(new)
    changes = SequenceMatcher(None, old_tokens, new_tokens, autojunk=False).get_opcodes()
    return [(" ".join(old_tokens[a:b]), " ".join(new_tokens[c:d])) for kind, a, b, c, d in changes if kind != "equal"]


def places(old: str, new: str, from_phrase: str, to_phrase: str) -> int:
    """The number of places where the new phrase replaces the old one; 0 if the texts differ in anything else.

    An empty old phrase means that the new one is added, at one place.
    """
    old_tokens, new_tokens, removed, added = map(tokens, (old, new, from_phrase, to_phrase))
    if not removed:
        return int(bool(added) and _is_added(old_tokens, new_tokens, added))
    start = {0: 0}  # tokens of the new text read -> most places replaced on the way
    states: list[dict[int, int]] = [start, *({} for _ in old_tokens)]
    for at, state in enumerate(states[:-1]):
        for read, count in state.items():
            if new_tokens[read : read + 1] == old_tokens[at : at + 1]:
                after = states[at + 1]
                after[read + 1] = max(after.get(read + 1, 0), count)
            replaced = old_tokens[at : at + len(removed)] == removed
            if replaced and new_tokens[read : read + len(added)] == added:
                after = states[at + len(removed)]
                after[read + len(added)] = max(after.get(read + len(added), 0), count + 1)
    return states[-1].get(len(new_tokens), 0)


def _is_added(old: list[str], new: list[str], added: list[str]) -> bool:
    starts = range(len(new) - len(added) + 1)
    return any(new[at : at + len(added)] == added and new[:at] + new[at + len(added) :] == old for at in starts)


def check_diff(edit: Edit) -> Verdict | None:
    """Refuse captions whose difference is not exactly the edit's claimed change, at one or several places."""
    (change,) = edit.changes
    differences = word_diff(edit.caption, edit.new_caption)
    if not differences:
        return Verdict(False, "caption unchanged", "the new caption is the old one")
    if places(edit.caption, edit.new_caption, change.from_phrase, change.to_phrase):
        return None
    listed = "; ".join(f"“{old}” → “{new}”" for old, new in differences)
    claimed = f"“{change.from_phrase}” → “{change.to_phrase}”" if change.from_phrase else f"adding “{change.to_phrase}”"
    return Verdict(False, "word diff", f"{claimed} is not what the captions differ in: {listed}")
