"""The word diff of two captions: does the new one have the change that the language model claims, and no other?

LANCE's reference code reads the hint lines of `difflib.ndiff` instead ("woman ++").
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from gateway.methods.counterfactual import Edit, Verdict

_TOKEN = re.compile(r"\w+(?:[-'’]\w+)*|[^\w\s]")
_ARTICLES = ("a", "an", "the")  # ignored, because an article may change with the next word


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
