"""Protected characteristics of people that the words of an edit bring in, change or take away.

Some words name one wherever they stand ("teenager"), others beside a word for people only ("an old man", not "an old
bus").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from gateway.methods.counterfactual import Edit, TaskDescription, Verdict
from gateway.methods.words import PEOPLE, WORD

CHECK: Final = "protected characteristic"
_GENDER = (
    "male female man woman boy girl gentleman lady guy husband wife mother father mom dad son daughter brother sister "
    "policeman policewoman fireman businessman businesswoman sportsman sportswoman fisherman salesman saleswoman "
    "cowboy cowgirl mailman postman cameraman schoolboy schoolgirl grandmother grandfather grandma grandpa aunt uncle "
    "niece nephew bride groom waitress actress hostess stewardess housewife ballerina nun"
)
_PRONOUNS: Final = frozenset(("he", "him", "his", "she", "her"))  # count if nothing else says a gender
# Nouns for people that say no characteristic, without those that also name things or stand before them ("an old coach",
# "an old passenger train").
_ROLE = (
    "human couple pupil student teacher professor surgeon nurse soldier sailor officer firefighter lifeguard farmer "
    "gardener engineer scientist astronaut mechanic chef waiter vendor shopper musician singer guitarist drummer "
    "dancer artist actor clown photographer athlete cyclist biker motorcyclist skier snowboarder skater skateboarder "
    "surfer swimmer runner jogger hiker climber gymnast golfer wrestler goalkeeper referee musher spectator stranger"
)
_AGE = (
    "elderly teen teenage teenaged teenager adolescent toddler baby infant kid child children adult youngster youth "
    "pensioner"
)
_ANYWHERE: Final[Mapping[str, str]] = {  # group of each word
    word: group
    for group, words in {
        "gender": f"{_GENDER} transgender",
        "age": _AGE,
        "ethnicity": "race racial ethnic african asian arab caucasian hispanic latino latina",
        "religion": "jew jewish muslim islamic christian catholic hindu buddhist sikh hijab burqa niqab turban kippah "
        "rabbi imam priest nun monk",
        "orientation": "gay lesbian bisexual homosexual",
        "disability": "disabled disability blind deaf wheelchair amputee prosthetic paralysed paralyzed",
        "pregnancy": "pregnant",
    }.items()
    for word in words.split()
}
_OF_PEOPLE: Final[Mapping[str, str]] = {
    "age": "old|older|young|younger|aged|middle[- ]aged|senior",
    "ethnicity": "black|white|brown|chinese|japanese|korean|indian|mexican|european|american|middle[- ]eastern|"
    "indigenous|(?:dark|light|pale|fair|black|white|brown)[- ]skin(?:ned)?",
}
_NOUN = "|".join([PEOPLE, "men", "women", "ladies", *_GENDER.split()[2:], *_AGE.split()[2:], *_ROLE.split()])
_PERSON = re.compile(rf"\b(?:{_NOUN})s?\b")
_ANY = "|".join(_OF_PEOPLE.values())
_ATTRIBUTES: Final = {  # before the noun, with other such words in between; or a skin, which is a person's anyway
    group: re.compile(rf"\b({words})\b(?=[ -](?:(?:{_ANY}|tall|short|smiling)[ -])*(?:{_NOUN})s?\b|(?<=skin))")
    for group, words in _OF_PEOPLE.items()
}


def check_people(edit: Edit, task: TaskDescription) -> Verdict | None:
    """Refuse an edit that changes a protected characteristic of people, unless the job allows such edits."""
    found = {} if task.protected_characteristics == "allow" else changed_by(edit)
    if not found:
        return None
    named = "; ".join(f"{group}: {', '.join(words)}" for group, words in found.items())
    return Verdict(
        False,
        CHECK,
        f"the edit changes a protected characteristic of people ({named}); only a job with "
        "`protected_characteristics: allow`, for whose use its owner is responsible, makes such edits",
    )


def changed_by(edit: Edit) -> dict[str, list[str]]:
    """The characteristics that new caption, phrases or instruction change, each with the words that say so."""
    new = edit.new_caption or " ".join([edit.caption, *(change.to_phrase for change in edit.changes)])
    found = characteristics(edit.caption, new)
    for group, words in characteristics(edit.caption, f"{edit.caption} {edit.instruction}").items():
        found[group] = sorted({*found.get(group, []), *words})
    return found


def characteristics(old: str, new: str) -> dict[str, list[str]]:
    """The characteristics that differ between two captions, by group.

    Words that go count only if as many people stay: "woman" → "person" hides a gender, "woman" → "bench" a person.
    """
    before, after = _mentions(old), _mentions(new)
    as_many = len(_PERSON.findall(new.lower())) >= len(_PERSON.findall(old.lower()))
    found: dict[str, list[str]] = {}
    for group, word in sorted((after - before) | (before - after if as_many else set())):
        found.setdefault(group, []).append(word)
    return found


def _mentions(text: str) -> set[tuple[str, str]]:
    """Group and word of each mention of a characteristic; plurals count as their singular."""
    lower = text.lower()
    words = list(map(_singular, WORD.findall(lower)))
    mentions = {(_ANYWHERE[word], word) for word in words if word in _ANYWHERE}
    if "gender" not in {group for group, _ in mentions}:
        mentions |= {("gender", word) for word in words if word in _PRONOUNS}
    for group, pattern in _ATTRIBUTES.items():
        mentions |= {(group, match[1]) for match in pattern.finditer(lower)}
    return mentions


def _singular(word: str) -> str:
    if word in _ANYWHERE or word in _PRONOUNS:
        return word
    word = re.sub("men$", "man", word)
    return f"{word[:-3]}y" if word.endswith("ies") else word.removesuffix("s")
