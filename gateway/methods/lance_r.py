"""LANCE-R: LANCE's random baseline (arXiv 2305.19164, section 4.1). A random word is replaced by a probable one.

1 caption the image, as LANCE does
2 mask a random content word; the masked language model's most probable other word is the edit
3 (no text checks)
4, 5 as LANCE (`lance.py`), and the image must be nearer to the new word than to the old one

Words are sampled until there are enough edits. When all words are used, their second fillings follow, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Annotated

from pydantic import Field

from gateway.methods.arms import rows
from gateway.methods.caption import IMAGE_DOMAIN, CaptionDomain, begin_with_domain, write_caption
from gateway.methods.checks import WORD_CHECKS
from gateway.methods.counterfactual import Change, Changes, Edit, MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.inverted import SweepParameters, with_compared_arms
from gateway.methods.lance import keep_best, sweep_fractions
from gateway.methods.paraphrase import revision_with_paraphrase
from gateway.methods.schedule import Inputs, Proposal
from gateway.methods.words import content_words, stem
from shared.schemas.language import Filling, FillRequest, Gap
from shared.service.endpoints import Services


def lance_r(
    image: MethodImage, task: TaskDescription, services: Services, parameters: LanceRParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The counterfactuals of one source image in sampled order, then a null and a sham arm for each chosen fraction.

    `seed` samples the words. If no word of the caption can be replaced, the result is empty. Raises what the services
    raise.
    """
    inputs = Inputs("lance-r", revision_with_paraphrase(REVISION, parameters), image, task, services, parameters, seed)
    caption = write_caption(image, services, parameters)  # 1
    caption = begin_with_domain(caption, parameters)
    edits = replace_words(inputs, caption)  # 2
    batches = sweep_fractions(inputs, caption, edits)  # 4
    arms = [arm for batch in batches for arm in keep_best(inputs, batch, WORD_CHECKS)]  # 5
    compared = with_compared_arms(inputs, caption, edits, arms, WORD_CHECKS)
    yield from rows(inputs.lineage(), caption, [Proposal(edit, seed) for edit in edits], *compared)


def replace_words(inputs: Inputs[LanceRParameters], caption: str) -> list[Edit]:
    """Step 2: the first filling of every word in random order, then the second fillings; each new caption once."""
    p, spans = inputs.parameters, content_words(caption)
    if not spans:
        return []
    Random(inputs.derive_seed(caption)).shuffle(spans)
    gaps = [Gap(before=caption[:start], after=caption[end:]) for start, end in spans]
    reply = inputs.services.fill(FillRequest(gaps=gaps[:_MAX_GAPS], most=p.fillings))
    fillings_of_words = [
        _other_words(caption[start:end], fillings)
        for (start, end), fillings in zip(spans, reply.fillings, strict=False)
    ]
    edits: dict[str, Edit] = {}
    for rank in range(max(map(len, fillings_of_words), default=0)):
        for (start, end), gap, words in zip(spans, gaps, fillings_of_words, strict=False):
            if rank < len(words) and len(edits) < p.counterfactuals_per_image:
                edit = _edit(caption, caption[start:end], words[rank], gap)
                edits.setdefault(edit.new_caption, edit)
    return list(edits.values())


def _other_words(word: str, fillings: Sequence[Filling]) -> list[str]:
    """The fillings that are another content word, the most probable first."""
    return [new.word for new in fillings if stem(new.word) != stem(word) and content_words(new.word)]


def _edit(caption: str, old: str, filling: str, gap: Gap) -> Edit:
    new = filling.capitalize() if old[0].isupper() else filling
    change = Change("other", old, new, old.lower(), filling.lower())
    return Edit((change,), caption, f"{gap.before}{new}{gap.after}")


# --- The parameters.

REVISION = "2"  # raise it whenever the same replies would give other counterfactuals
_MAX_GAPS = 64  # per message


class LanceRParameters(SweepParameters):
    """A job's parameters for LANCE-R."""

    counterfactuals_per_image: Annotated[
        int, Field(ge=1, le=20, description="Words of an image that are replaced.")
    ] = 4
    fillings: Annotated[
        int, Field(ge=1, le=100, description="How many words the masked language model gives for a gap.")
    ] = 10
    caption_prompt: Annotated[str, Field(max_length=500, description="Prefix given to the captioner.")] = IMAGE_DOMAIN
    caption_domain: CaptionDomain = None

    def changes(self) -> Changes:
        return Changes(refusal="lance-r draws its words by chance, so it cannot be balanced; leave it out of `methods`")
