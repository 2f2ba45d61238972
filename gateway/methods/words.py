"""Words of captions and of labels, compared by crude stems: "foggy" names the class "fog", "buses" the class "bus"."""

from __future__ import annotations

import re

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
        wanted = stems(name)
        if wanted and any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1)):
            return True
    return False


def occurrences(text: str, phrase: str) -> int:
    """How often a text has a phrase as whole words, in upper or lower case."""
    return len(re.findall(rf"(?<!\w){re.escape(phrase.strip())}(?!\w)", text, re.IGNORECASE)) if phrase.strip() else 0


# Segmenters' labels of people and vehicles, and the words that captions have for them.
_ANYBODY = PEOPLE.replace("|", ",") + ",man,men,woman,women,boy,girl,cyclist"
_IN_CAPTIONS = dict.fromkeys(map(stem, ("person", "people", "pedestrian", "rider")), _ANYBODY) | {
    stem("vehicle"): "vehicle,car,bus,truck,van,lorry,taxi,tram,motorcycle,motorbike,bicycle"
}


def in_captions(label: str) -> str:
    """The names of a segmenter's label, as `names_class` takes them, with the words that captions have for them."""
    return ",".join(_IN_CAPTIONS.get(stem(name), name) for name in label.split(",") if name.strip())
