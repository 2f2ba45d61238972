"""Whether the images of a job are those that the profile's models know, looked at before the job is stored.

Small models know one world only (`[evaluator.domain]` of a profile) and smear everything else. The evaluator
judges a sample of the images. A job is refused if most of the sample is outside, so one odd image
does not stop it; `outside_domain` in its spec forces it. Plan and report mention a share above that of false alarms.
Methods without a generator take all images, unless a segmenter of that world is to find the objects that they cut out.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Sequence

from PIL import Image

from gateway.context import Context
from gateway.methods import JobMethod
from shared.media.testsets import images_to_look_at
from shared.problems import InvalidInput
from shared.profiles.evaluator import Domain
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.evaluation import DomainRequest

SAMPLED = MAX_IMAGES_PER_MESSAGE  # images of a job, those with the lowest digests: 16
REFUSED_ABOVE = 0.5  # the share of the sample outside the domain
MENTIONED_ABOVE = 0.1
COPY_SIDE = 256  # pixels of the longer side of what the evaluator sees
_WITHOUT_GENERATOR = ("algorithmicallyEnhanced", "composite")  # how images of such methods come to be
FORCE = "or set `outside_domain` (`--outside-domain`) to test them all the same"


def outside_domain(
    context: Context,
    methods: Sequence[JobMethod],
    object_masks: bool,
    forced: bool,
    digests: Collection[str],
    read: Callable[[str], bytes],
) -> str:
    """What plan and report say of images outside the profile's domain; "" if they are inside, or the profile has none.

    `object_masks`: they are sent. `read` returns the PNG of a digest. Raises InvalidInput if most of the sample is
    outside and the job is not `forced`, and NotReady while the evaluator is not ready.
    """
    domain, sample = context.profile.evaluator.domain, images_to_look_at(digests)
    segmented = not object_masks and context.profile.diffusion.background_remover is None
    if domain is None or not sample or all(_takes_all(method, segmented) for method in methods):
        return ""
    images = [ImagePayload(png=small_copy(read(digest))) for digest in sample]
    reply = context.services.domain(DomainRequest(images=images))
    outside = sum(log_odds > 0 for log_odds in reply.log_odds)
    sentence = _sentence(context.profile.profile.name, domain, outside, len(sample))
    if outside > REFUSED_ABOVE * len(sample) and not forced:
        raise InvalidInput(f"{sentence}: {domain.instead}, {FORCE}")
    return f"{sentence}: {domain.instead}." if outside > MENTIONED_ABOVE * len(sample) else ""


def _takes_all(method: JobMethod, segmented: bool) -> bool:
    """Whether a method needs no model that knows the domain only; `segmented`: the segmenter finds the objects."""
    return method.digital_source in _WITHOUT_GENERATOR and not (segmented and method.parameters.objects())


def _sentence(profile: str, domain: Domain, outside: int, sampled: int) -> str:
    images = "the image is" if sampled == 1 else f"{outside} of {sampled} images looked at are"
    return f"profile {profile} knows only {domain.name}, and {images} something else"


def small_copy(png: bytes) -> bytes:
    """The picture, scaled down if it is large, as PNG."""
    with Image.open(io.BytesIO(png)) as image:
        if max(image.size) <= COPY_SIDE:
            return png
        written = io.BytesIO()
        scaled_down(image).save(written, "PNG")
    return written.getvalue()


def scaled_down(image: Image.Image) -> Image.Image:
    """The picture in the size in which the evaluator sees it. Smaller ones stay as they are."""
    copy = image.copy()
    copy.thumbnail((COPY_SIDE, COPY_SIDE), Image.Resampling.BOX)
    return copy


class SampledImages:
    """The image store of a dry run: it keeps nothing but small copies, by digest, of the images to look at."""

    def __init__(self) -> None:
        self.copies: dict[str, bytes] = {}

    def exists(self, key: str) -> bool:
        """Always false, so that every image comes by."""
        return False

    def put(self, key: str, data: bytes) -> None:
        """Look at the PNG of an image or mask, and forget most."""
        digest = key.rpartition("/")[2].removesuffix(".png")
        if len(self.copies) >= SAMPLED and digest > max(self.copies):
            return
        with Image.open(io.BytesIO(data)) as image:
            if image.mode != "RGB":  # a mask
                return
        self.copies[digest] = small_copy(data)
        if len(self.copies) > SAMPLED:
            del self.copies[max(self.copies)]
