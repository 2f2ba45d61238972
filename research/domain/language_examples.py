"""Training examples of the tiny language model: the methods' questions about captions, with correct answers.

DILLEMA asks three, LANCE one ("perturb"), `instruct` the same with instructions. The questions are built
by the methods' own functions. A task asks for one field of the scene; a good answer never changes that field, nor the
class where DILLEMA asks. LANCE's *subject* is the labelled thing itself: it may change only where the task asks for
something else (the weather, say).
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from gateway.methods.counterfactual import TaskDescription
from gateway.methods.dillema import alternative_messages, keyword_messages, rewrite_messages
from gateway.methods.instruct import INSTRUCT
from gateway.methods.lance import LANCE_FACTORS, PERTURB, LanceFactor, perturb_messages
from research.domain.language_domain import WORDS, LanguageDomain
from shared.schemas.language import Message
from tinyworld.domain.descriptions import Description, Mention, Withheld
from tinyworld.domain.scenes import Split
from tinyworld.domain.wording import slot_of, with_articles

Kind = Literal["keywords", "alternatives", "rewrite", "perturb", "instruct"]
KINDS: tuple[Kind, ...] = ("keywords", "alternatives", "rewrite", "perturb", "instruct")
PERTURBING: tuple[Kind, ...] = ("perturb", "instruct")  # ask for edits of a factor
MOST_EDITS = 3  # of one perturbation
_SAYS_NOTHING = 0.25  # share kept of the perturbations that have no right edit
_EDITS = (1, 1, 1, 2, 2, MOST_EDITS)  # asked for
# Factors of perturbations, those that are learnt slowest more often than the others.
_REQUESTED: tuple[LanceFactor, ...] = (*LANCE_FACTORS, "subject", "subject", "object", "object", "adjective")


@dataclass(frozen=True, slots=True)
class Example:
    """One question and its correct answer. `description` is its caption, `factor` the factor of a perturbation."""

    kind: Kind
    messages: list[Message]
    reply: str
    description: Description
    domain: LanguageDomain[Any]
    target: Mention | None = None
    forbidden: str = ""
    factor: LanceFactor | None = None
    edits: int = 0


@dataclass(frozen=True, slots=True)
class Wordings:
    """The captions and tasks that examples are drawn from."""

    domain: LanguageDomain[Any]
    split: Split = "generator"
    allow_withheld: bool = False  # withheld combinations of factors
    withheld: Withheld = "nothing"  # of captions; unless "nothing", half of the tasks are withheld ones, too
    noise: float = 0.3  # share of changes to random words, of tasks with some, and half the share of such captions


def example(kind: Kind, seed: int, wordings: Wordings, factor: LanceFactor | None = None) -> Example:
    """Example number `seed` (0 to 9,999,999) of a kind; the same in every process.

    Of a perturbation, `factor` is drawn where none is given, and then most captions say something of it, and most tasks
    allow to change it.
    """
    random, domain = Random(f"{kind}/{seed}"), wordings.domain
    while True:
        scene = domain.scene(wordings.split, random.randrange(10_000_000), wordings.allow_withheld)
        requested: LanceFactor = random.choice(_REQUESTED) if factor is None else factor
        changes_main = kind in PERTURBING and factor is None and requested == "subject"
        field, task, truth = _task(scene, random, wordings, main_share=0.2 if changes_main else 0.8)
        description = domain.described(scene, random.randrange(2**31), wordings.withheld)
        if random.random() < 2 * wordings.noise:
            description = random.choice((_lengthen, _reword, _reword))(description, random, domain)
        if kind in PERTURBING:
            if factor or perturb(description, field, requested, domain) or random.random() < _SAYS_NOTHING:
                return _perturbation(kind, description, field, (task, truth), requested, random, domain)
            continue
        mentions = [m for m in description.mentions if m.field in domain.edit_factor and m.field != field]
        if kind == "keywords":
            messages, reply = keyword_messages(task, description.text, truth), _keywords(mentions, domain)
            return Example(kind, messages, reply, description, domain, forbidden=field)
        if mentions and kind == "alternatives":
            return _alternative(description, mentions, (task, truth), random, domain)
        if mentions:
            return _rewrite(description, mentions, (task, truth), random, wordings)


def _alternative(
    description: Description,
    mentions: Sequence[Mention],
    task_and_truth: tuple[TaskDescription, str | None],
    random: Random,
    domain: LanguageDomain[Any],
) -> Example:
    task, truth = task_and_truth
    mention = random.choice(mentions)
    messages = alternative_messages(task, description.text, truth, mention.phrase)
    reply = _dumps({"alternatives": _alternatives(mention, random, 3, domain)})
    return Example("alternatives", messages, reply, description, domain, mention)


def _rewrite(
    description: Description,
    mentions: Sequence[Mention],
    task_and_truth: tuple[TaskDescription, str | None],
    random: Random,
    wordings: Wordings,
) -> Example:
    task, truth = task_and_truth
    mentions = random.sample(mentions, min(len(mentions), random.choice((1, 1, 1, 2, 3))))
    changes = [(mention.phrase, _replacement(mention, random, wordings)) for mention in mentions]
    messages = rewrite_messages(task, description.text, truth, changes)
    reply = _dumps({"caption": rewritten(description.text, changes)})
    return Example("rewrite", messages, reply, description, wordings.domain)


def perturb(
    description: Description, forbidden: str, factor: LanceFactor, domain: LanguageDomain[Any]
) -> list[Mention]:
    """The mentions that an edit of a factor may change when the task asks for the field `forbidden`."""
    fields = {"label": "subject", **domain.edit_factor}
    return [m for m in description.mentions if fields.get(m.field) == factor and m.field != forbidden]


def _perturbation(
    kind: Kind,
    description: Description,
    forbidden: str,
    task: tuple[TaskDescription, str | None],
    factor: LanceFactor,
    random: Random,
    domain: LanguageDomain[Any],
) -> Example:
    """A question of LANCE's or `instruct`'s, and its answer: edits that differ, spread over the factor's mentions."""
    most = random.choice(_EDITS)
    edits: list[dict[str, str]] = []
    options = {m: _alternatives(m, random, most, domain) for m in perturb(description, forbidden, factor, domain)}
    while len(edits) < most and any(options.values()):
        mention = random.choice([m for m, left in options.items() if left])
        new = options[mention].pop()
        edit = {
            "from_phrase": mention.phrase,
            "from_value": mention.value,
            "to_phrase": new["phrase"],
            "to_value": new["value"],
            "caption": replace_phrase(description.text, mention, new["phrase"]),
        }
        if kind == "instruct":
            edit["instruction"] = _instruction(description, mention, new["phrase"], random, domain)
        edits.append(edit)
    question = INSTRUCT if kind == "instruct" else PERTURB
    messages = perturb_messages(task[0], description.text, task[1], factor, most, question)
    reply = _dumps({"edits": edits})
    return Example(kind, messages, reply, description, domain, None, forbidden, factor, most)


def _instruction(
    description: Description, mention: Mention, new: str, random: Random, domain: LanguageDomain[Any]
) -> str:
    stated = {other.field: other.phrase for other in description.mentions}
    slot = slot_of(mention.phrase, domain.slots, field=mention.field)
    return domain.instructions.of_phrases(slot, mention.phrase, new, stated, random.randrange(2**31))


def replace_phrase(text: str, mention: Mention, new: str) -> str:
    """The text with a mention's phrase replaced: the class wherever it is named, another thing once."""
    count = 0 if mention.field == "label" else 1
    return with_articles(re.sub(rf"\b{re.escape(mention.phrase)}\b", new, text, count=count))


def rewritten(text: str, changes: list[tuple[str, str]]) -> str:
    """The text with the first occurrence of each old phrase replaced, articles made to fit."""
    for old, new in changes:
        text = re.sub(rf"\b{re.escape(old)}\b", new, text, count=1)
    return with_articles(text)


def _task(
    scene: object, random: Random, wordings: Wordings, main_share: float
) -> tuple[str, TaskDescription, str | None]:
    """The field that the task asks for, its wording, and the ground truth where the user gave one."""
    tasks, main = wordings.domain.tasks, wordings.domain.main
    field = main if random.random() < main_share else random.choice([name for name in tasks if name != main])
    if getattr(scene, field, "") == "none":
        field = main
    withheld = wordings.withheld != "nothing" and random.random() < 0.5
    text = random.choice(tasks[field].withheld if withheld else tasks[field].usual)
    if wordings.noise and random.random() < wordings.noise:
        text = " ".join(_with_random_words(text.split(), random, 0.3, wordings.domain))
    if random.random() < 0.3:
        text = text[0].upper() + text[1:]
    if random.random() < 0.2 and text[-1] != "?":
        text += "."
    truth = str(getattr(scene, field)) if random.random() < 0.8 and hasattr(scene, field) else None
    return field, TaskDescription(text), truth


def _lengthen(description: Description, random: Random, domain: LanguageDomain[Any]) -> Description:
    """With a sentence of random words at the end."""
    words = random.choices(WORDS, k=random.randint(2, 6))
    return Description(f"{description.text} {' '.join(words).capitalize()}.", description.mentions)


def _reword(description: Description, random: Random, domain: LanguageDomain[Any]) -> Description:
    """With random words in place of, or before, some of those that state nothing: no sentence can be memorised."""
    share = random.choice((0.2, 0.5, 0.8))
    phrases = sorted({mention.phrase for mention in description.mentions}, key=len, reverse=True)
    pieces = re.split(rf"\b({'|'.join(map(re.escape, phrases))})\b", description.text)
    for place in range(0, len(pieces), 2):  # between the phrases
        words = re.split(r"([a-zA-Z]+)", pieces[place])
        words[1::2] = [_swap(word, random, domain) if random.random() < share else word for word in words[1::2]]
        pieces[place] = "".join(words)
    return Description(with_articles("".join(pieces)), description.mentions)


def _swap(word: str, random: Random, domain: LanguageDomain[Any]) -> str:
    if word.lower() in ("a", "an"):
        return word
    carrier = random.choice(domain.carriers)
    carrier = carrier.capitalize() if word[0].isupper() else carrier
    return f"{carrier} {word.lower()}" if random.random() < 0.3 else carrier


def _with_random_words(words: list[str], random: Random, share: float, domain: LanguageDomain[Any]) -> list[str]:
    """Some random words set between the words."""
    other_carriers = domain.carriers
    return [
        part for word in words for part in ([random.choice(other_carriers)] if random.random() < share else []) + [word]
    ]


def _keywords(mentions: list[Mention], domain: LanguageDomain[Any]) -> str:
    factors = domain.edit_factor
    return _dumps({"keywords": [{"phrase": m.phrase, "factor": factors[m.field], "value": m.value} for m in mentions]})


def _alternatives(mention: Mention, random: Random, most: int, domain: LanguageDomain[Any]) -> list[dict[str, str]]:
    """Up to `most` other values of the mention's field, in phrases of the same slot."""
    wordings = domain.slots[slot_of(mention.phrase, domain.slots, field=mention.field)].wordings
    values = [value for value in wordings if value != mention.value]
    chosen = random.sample(values, min(most, len(values)))
    return [{"phrase": _synonym(wordings[value].usual, random), "value": value} for value in chosen]


def _replacement(mention: Mention, random: Random, wordings: Wordings) -> str:
    if random.random() < wordings.noise:
        return " ".join(random.choices(WORDS, k=random.randint(1, 2)))
    return _alternatives(mention, random, 1, wordings.domain)[0]["phrase"]


def _synonym(phrases: tuple[str, ...], random: Random) -> str:
    return random.choice(phrases[1:]) if len(phrases) > 1 and random.random() < 0.3 else phrases[0]


def _dumps(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
