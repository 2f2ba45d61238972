"""The value of a background that has no name: the captioner describes it, and the language model says what it shows.

The question is DILLEMA's step 2, which lists a caption's phrases with factor and value; the value is that of the first
phrase of the background, else of another factor. The question does not depend on the source image, so a background has
one value in the whole job, and its caption and reply are recorded once.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.methods.counterfactual import TaskDescription
from gateway.methods.dillema import KEYWORDS, keyword_messages, keyword_schema
from gateway.methods.lineage import Exchange
from gateway.methods.questions import InvalidReply, ask
from gateway.methods.text_checks import check_keyword
from shared.characters import visible
from shared.endpoints import Services
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest

UNKNOWN = "another background"  # the value of an unknown background
MOST_PHRASES = 6
# A photograph of a place alone has the place as its subject.
_FACTORS = ("background", "weather", "subject", "object", "other", "domain", "adjective")


def value_of_background(
    digest: str, load: Callable[[str], ImagePayload], task: TaskDescription, services: Services
) -> tuple[str, tuple[Exchange, ...]]:
    """What an image shows, in the plainest word, and the exchange with the language model.

    The value is "another background" if the caption names nothing but classes of the job, or the reply is not valid.
    Raises what the services raise.
    """
    (caption,) = services.caption(CaptionRequest(images=[load(digest)])).captions
    caption = " ".join(caption.split())
    messages, schema = keyword_messages(task, caption, None), keyword_schema(MOST_PHRASES)
    try:
        reply, exchange = ask(services, KEYWORDS, messages, schema, seed=0, max_tokens=512)  # greedy: any seed
    except InvalidReply as invalid:
        return UNKNOWN, (invalid.exchange,)
    usable = [
        (_FACTORS.index(keyword.factor), value)
        for keyword in reply["keywords"]
        if (value := visible(" ".join(keyword.value.split())))
        and check_keyword(keyword.phrase, caption, None, task.classes) is None
        and check_keyword(value, value, None, task.classes) is None
    ]
    return min(usable, key=lambda ranked: ranked[0], default=(0, UNKNOWN))[1], (exchange,)
