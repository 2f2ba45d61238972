"""Contract of diffusion_service's instructed edits: a source image and instructions in, edited images out."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload
from shared.schemas.diffusion import Guidance

MAX_INSTRUCTED_EDITS = MAX_IMAGES_PER_MESSAGE - 2  # source and mask travel too
LONGEST_INSTRUCTION = 500
Instruction = Annotated[str, Field(min_length=1, max_length=LONGEST_INSTRUCTION)]
# all: the editor may change every pixel. background: not those of the object.
EditedRegion = Literal["all", "background"]


class InstructedEdit(Contract):
    """One image to edit: an instruction, and the seed of its noise."""

    instruction: Instruction
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class InstructRequest(Contract):
    """`POST /v1/instructed-edits`: edit a source image by instructions, with the profile's `[diffusion.instruct]`.

    With the region `background`, the object keeps its place in the source: `mask` (mode L, the source's size) is the
    object where it is not 0; None: what the profile's segmenter must keep. `image_guidance` is how closely the image
    follows the source, by InstructPix2Pix; other editors ignore it.
    """

    editor: Literal["instruct"] = "instruct"
    source: ImagePayload
    edits: Annotated[list[InstructedEdit], Field(min_length=1, max_length=MAX_INSTRUCTED_EDITS)]
    region: EditedRegion = "all"
    mask: ImagePayload | None = None
    steps: Annotated[int, Field(ge=1, le=200)] = 50
    guidance: Guidance = 7.5
    image_guidance: Guidance = 1.5


class InstructReply(Contract):
    """Images at the source's size, in the order of the request; null where an edit is refused or not finite.

    `refusals` has the reason for each refused edit, "" for all others. `keep_mask` (mode L, 255 = keep) is the object
    that the region `background` leaves out. `evaluations`: network evaluations per image; 0 if the editor is a server,
    which does not say.
    """

    images: list[ImagePayload | None]
    refusals: list[str]
    keep_mask: ImagePayload | None
    evaluations: int
