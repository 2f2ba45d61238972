"""LANCE-R: LANCE's random baseline (arXiv 2305.19164, section 4.1). What do edits do that nobody has thought about?

1 caption the image, as LANCE does. 2 hide a word that carries meaning, drawn at random, and let a masked language
model fill the gap; the first filling that is another word makes the edit. 3 no text checks. 4 and 5 as LANCE
(`sweep.py`), and the image must be nearer to the new word than to the old. Words are drawn until there are edits
enough; when each has been drawn, they are gone through again for their next fillings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated

from pydantic import Field

from gateway.methods.checks import WORD_CHECKS, skipped_checks
from gateway.methods.counterfactual import Change, Counterfactual, Edit, Services, SourceImage, TaskDescription, Verdict
from gateway.methods.inverted import caption_of
from gateway.methods.sweep import SweepParameters, swept
from gateway.methods.words import content_words, stem
from shared.schemas.language import Filling, FillRequest, Gap
from shared.seeds import derive_seed

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals


class LanceRParameters(SweepParameters):
    """What a job may choose about LANCE-R."""

    counterfactuals_per_image: Annotated[
        int, Field(ge=1, le=20, description="Words of an image that are replaced.")
    ] = 4
    fillings: Annotated[
        int, Field(ge=1, le=100, description="How many words the masked language model offers for a gap.")
    ] = 10
    caption_prompt: Annotated[str, Field(max_length=500, description="Image domain: prefix for the captioner.")] = (
        "a photo of"
    )


def lance_r(
    image: SourceImage, task: TaskDescription, services: Services, parameters: LanceRParameters, seed: int
) -> Iterator[Counterfactual]:
    """The counterfactuals of one source image in the order drawn, then a null arm for each fraction that was chosen.

    `seed` draws the words. A caption without a word that can be replaced has none. A failure of a service is raised.
    """
    caption = caption_of(image, services, parameters)
    edits = _edits(services, parameters, caption, derive_seed(image.id, "lance-r", REVISION, seed, caption))
    made, nulls = swept(image, task, services, parameters, caption, edits, WORD_CHECKS) if edits else ([], [])
    null_of = {null.chosen.fraction: len(made) + place for place, null in enumerate(nulls)}
    lineage = {
        "method": "lance-r",
        "revision": REVISION,
        "parameters": parameters.model_dump(mode="json"),
        "skipped_checks": list(skipped_checks(image, task)),
        "caption": caption,
    }
    for ordinal, one in enumerate([*made, *nulls]):
        yield Counterfactual(
            ordinal=ordinal,
            arm="edit" if one.edit else "null",
            seed=seed,
            edit=one.edit,
            null_ordinal=null_of[one.chosen.fraction] if one.edit else None,
            image=one.chosen.image,
            verdict=one.chosen.verdict if one.edit else Verdict(True),
            scores=one.chosen.scores,
            lineage={**lineage, **one.lineage()},
        )


def _edits(services: Services, parameters: LanceRParameters, caption: str, seed: int) -> list[Edit]:
    """Step 2: every drawn word's first filling, then the second ones; each new caption once."""
    places = content_words(caption)
    if not places:
        return []
    Random(seed).shuffle(places)
    gaps = [Gap(before=caption[:start], after=caption[end:]) for start, end in places]
    found = services.fill(FillRequest(gaps=gaps[:_MOST_GAPS], most=parameters.fillings)).fillings
    offered = [_others(caption[start:end], fillings) for (start, end), fillings in zip(places, found, strict=False)]
    edits: dict[str, Edit] = {}
    for rank in range(max(map(len, offered), default=0)):
        for (start, end), gap, words in zip(places, gaps, offered, strict=False):
            if rank < len(words) and len(edits) < parameters.counterfactuals_per_image:
                old = caption[start:end]
                new = words[rank].capitalize() if old[0].isupper() else words[rank]
                change = Change("other", old, new, old.lower(), words[rank].lower())
                new_caption = f"{gap.before}{new}{gap.after}"
                edits.setdefault(new_caption, Edit((change,), caption, new_caption))
    return list(edits.values())


_MOST_GAPS = 64  # per message


def _others(word: str, fillings: Sequence[Filling]) -> list[str]:
    """The fillings that are another word and carry meaning, the most probable first."""
    return [one.word for one in fillings if stem(one.word) != stem(word) and content_words(one.word)]
