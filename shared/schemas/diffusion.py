"""Contract of diffusion_service: a source image with renderings or edits in, images out.

Contract of diffusion_service's compositions: a source image in, its object on other backgrounds and places out.

Contract of diffusion_service's corruptions: a source image in, the same image with classical corruptions out.

Contract of diffusion_service's instructed edits: a source image and instructions in, edited images out.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, Contract, ImagePayload

CorruptionKind = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "motion_blur",
    "zoom_blur",
    "fog",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg",
]
SEVERITIES = (1, 2, 3, 4, 5)
MOST_BACKGROUNDS = 64  # that a job names, or takes from its images
# Where the object goes: the edge of the image that it is moved to, or its middle.
Place = Literal["left", "right", "top", "bottom", "middle"]
Scale = Annotated[float, Field(ge=0.1, le=4)]
# canny: edges. soft_edges: graded ones. hed: those of HED's network. segmentation: the segmenter's classes in colour.
# depth: near is white.
ControlKind = Literal["canny", "segmentation", "depth", "soft_edges", "hed"]
# full: every edge of the source (the paper). structure: without the small loose edges of rain, snow, stars and
# texture. object: only the edges of the segmented object, which must not change. See `control_region` of DILLEMA.
ControlRegion = Literal["full", "structure", "object"]
Fraction = Annotated[float, Field(ge=0, le=1)]
CONTROL_SCALE_LIMITS = (0, 2)
ControlScale = Annotated[float, Field(ge=CONTROL_SCALE_LIMITS[0], le=CONTROL_SCALE_LIMITS[1])]
GUIDANCE_LIMITS = (1, 30)
Guidance = Annotated[float, Field(ge=GUIDANCE_LIMITS[0], le=GUIDANCE_LIMITS[1])]


class ControlStrength(Contract):
    """One kind of control, its weight, and the steps it is active in: from the share `start` of them up to `end`."""

    kind: ControlKind
    scale: ControlScale = 1.0
    start: Fraction = 0.0
    end: Fraction = 1.0

    @model_validator(mode="after")
    def _some_steps(self) -> Self:
        if self.start >= self.end:
            raise ValueError(f"control {self.kind!r} starts at {self.start} and ends at {self.end}; let it end later")
        return self

    def holds(self, step: int, steps: int) -> bool:
        """Whether the control is on in a step, counted from 0."""
        return round(self.start * steps) <= step < round(self.end * steps)


Controls = Annotated[tuple[ControlStrength, ...], Field(max_length=5)]


def chosen_controls(control: ControlKind, scale: float, controls: Controls) -> Controls:
    """Return the controls of an image: `controls`, or if empty, `control` alone for all steps.

    Raises ValueError if a kind is named twice, or if both ways of choosing are used.
    """
    if not controls:
        return (ControlStrength(kind=control, scale=scale),)
    kinds = [strength.kind for strength in controls]
    if len(set(kinds)) < len(kinds):
        raise ValueError(f"controls names a kind twice ({', '.join(kinds)}); name each once")
    if (control, scale) != ("canny", 1.0):
        raise ValueError("choose by `controls`, or by `control` and `control_scale`, not by both")
    return controls


# How the shape of a protected region is preserved inside its mask. none: only measured afterwards. blended: the latents
# are those of the noised source, for the first share `strength` of the steps. relit: likewise, with the local light of
# the generated image. edges: the control weighs 1 + `strength` times as much.
ProtectionKind = Literal["none", "blended", "relit", "edges"]


class Protection(Contract):
    """Classes (labels of the profile's segmenter) that must keep their shape while their appearance may change."""

    classes: Annotated[tuple[str, ...], Field(min_length=1, max_length=50)]
    by: ProtectionKind = "none"
    strength: Fraction = 0.5


class Rendering(Contract):
    """One image to render: a prompt under the source's control with its own seed."""

    prompt: Annotated[str, Field(min_length=1, max_length=2_000)]
    region: ControlRegion = "full"
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class RenderRequest(Contract):
    """`POST /v1/renderings`. All renderings of one source share the source's control, computed once."""

    editor: Literal["controlnet"] = "controlnet"
    source: ImagePayload
    renderings: Annotated[list[Rendering], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 1)]
    control: ControlKind = "canny"
    control_scale: ControlScale = 1.0
    controls: Controls = ()
    protection: Protection | None = None
    negative_prompt: Annotated[str, Field(max_length=1_000)] = ""
    steps: Annotated[int, Field(ge=1, le=200)] = 20
    guidance: Guidance = 7.5

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        chosen_controls(self.control, self.control_scale, self.controls)
        return self

    @model_serializer(mode="wrap")
    def _to_wire(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = plain(self)
        for name in ("controls", "protection"):  # calls recorded before these fields existed keep their keys
            if not getattr(self, name):
                del values[name]
        return values


class ProtectedRegion(Contract):
    """One connected region of a protected class in the source: its share of the image's area, and its box.

    `box` is left, top, right and bottom in the source's pixels, right and bottom exclusive.
    """

    label: str
    share: float
    box: tuple[int, int, int, int]


class RegionOutcome(Contract):
    """Measurements of a protected region in a rendered image.

    `iou`: of its mask, and the class's mask there in the image, by the profile's segmenter. `outline`: mean grey levels
    by which the image changes per pixel along the region's outline, where a seam would show. `inside` and `around`: the
    mean colour (red, green, blue) within the region, and beside it where nothing is protected.
    """

    iou: float
    outline: float
    inside: tuple[float, float, float]
    around: tuple[float, float, float]


class ProtectionReply(Contract):
    """The regions of the source, their mask (mode L, 255 = protected), and the outcome of each per image."""

    mask: ImagePayload
    regions: list[ProtectedRegion]
    outcomes: list[list[RegionOutcome]]


class RenderReply(Contract):
    """Images at the source's size, in the order of the request; null where the result has NaN or infinity.

    `controls` holds the control image used for each region that occurs, of the first kind of control, and
    `further_controls` those of the others; `keep_mask` (mode L, 255 = keep) is the segmented object; `evaluations`
    counts network evaluations (one latent through one UNet forward) per image; `protection` is set if requested.
    """

    images: list[ImagePayload | None]
    controls: dict[ControlRegion, ImagePayload]
    keep_mask: ImagePayload | None
    evaluations: int
    prompts: list[str] = Field(default_factory=list)
    further_controls: dict[ControlKind, dict[ControlRegion, ImagePayload]] = Field(default_factory=dict)
    protection: ProtectionReply | None = None


# replace: words that replace others take over their attention. refine: all new words have their own attention.
WordAttention = Literal["replace", "refine"]
InversionKind = Literal["direct", "null_text"]
# none: the UNet alone. empty: the ControlNet gets an empty control image, for weights that were trained with one. All
# other values: edges of the source.
EditControl = Literal["none", "empty", "full", "structure", "object"]
LONGEST_PHRASE = 200  # characters
Phrase = Annotated[str, Field(min_length=1, max_length=LONGEST_PHRASE)]


class PhraseWeight(Contract):
    """Re-weighting: how strongly the image attends to a phrase of the new prompt; 1 changes nothing."""

    phrase: Phrase
    weight: Annotated[float, Field(ge=-10, le=10)]


class LocalBlend(Contract):
    """The target's latents are the source's wherever neither source nor target attends to these phrases.

    `threshold` is relative to the strongest attention; blending begins after the share `start` of the steps.
    """

    source_phrase: Phrase
    phrase: Phrase
    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.3
    start: Fraction = 0.2


class NullText(Contract):
    """Parameters of `null_text`: most optimiser steps per denoising step, and the learning rate.

    The paper's values are for Stable Diffusion's embeddings; smaller embeddings need a larger rate. An image is refused
    if its reconstruction has a PSNR below `least_psnr` (dB, against the autoencoder's round trip), or if the
    optimisation lowers the squared errors of its steps by less than the share `least_gain`: then it did nothing, as
    with a rate that is too small, or gradients that half precision rounds to zero.
    """

    iterations: Annotated[int, Field(ge=1, le=100)] = 10
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.01
    least_psnr: Annotated[float, Field(ge=0, le=100)] = 20.0
    least_gain: Annotated[float, Field(ge=0, lt=1)] = 0.05


class PromptEdit(Contract):
    """One new prompt. Its cross-attention follows the source's during the first `cross_fraction` of the steps."""

    prompt: Annotated[str, Field(min_length=1, max_length=2_000)]
    attention: WordAttention = "replace"
    cross_fraction: Fraction = 0.8
    weights: Annotated[list[PhraseWeight], Field(max_length=8)] = Field(default_factory=list)
    blend: LocalBlend | None = None


class EditRequest(Contract):
    """`POST /v1/edits`: invert a source image under its caption, and edit it by prompt-to-prompt.

    Every edit is rendered with each of the `self_fractions`, the share of the steps (from the first) in which
    self-attention is the source's. An edit whose prompt is the caption is the null arm. `attention_to` requests the
    source's attention to phrases of the caption. Nothing is random: equal requests get equal replies.
    """

    editor: Literal["prompt_to_prompt"] = "prompt_to_prompt"
    source: ImagePayload
    caption: Annotated[str, Field(min_length=1, max_length=2_000)]
    edits: Annotated[list[PromptEdit], Field(max_length=MAX_IMAGES_PER_MESSAGE - 1)]
    self_fractions: Annotated[list[Fraction], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 1)]
    attention_to: Annotated[list[Phrase], Field(max_length=MAX_IMAGES_PER_MESSAGE - 1)] = Field(default_factory=list)
    inversion: InversionKind = "direct"
    null_text: NullText = NullText()
    control: EditControl = "none"
    control_scale: ControlScale = 1.0
    steps: Annotated[int, Field(ge=1, le=200)] = 50
    guidance: Guidance = 7.5

    @model_validator(mode="after")
    def _fits_a_message(self) -> Self:
        images = len(self.edits) * len(self.self_fractions) + len(self.attention_to) + 1
        if images > MAX_IMAGES_PER_MESSAGE:
            raise ValueError(
                f"edits × self_fractions, attention_to and the reconstruction make {images} images; a message holds "
                f"{MAX_IMAGES_PER_MESSAGE}, so send the edits in several requests (the inversion is kept)"
            )
        return self


class EditEvaluations(Contract):
    """Network evaluations (one latent through one UNet forward pass; a backward pass counts as two).

    `inversion` is spent once per source image, `edit` for each image, and `source` once for each batch of edits of a
    source, in the steps in which the edits need it.
    """

    inversion: int
    source: int
    edit: int


class EditReply(Contract):
    """`images[edit][fraction]` in the order of the request, at the source's size, as is `reconstruction`.

    An image is null where the result has NaN or infinity, or where the edit is refused. `refusals` has a reason or null
    per edit, and is empty if no edit is refused. An edit is refused if the text encoder cannot read the changed words,
    or if a phrase to weigh or to blend is not in the texts. `reconstruction` is the source branch: with `direct` the
    autoencoder's round trip. `attention` holds one mask (mode L, 255 where attention is strongest) per phrase of
    `attention_to`; `keep_mask` (mode L, 255 = keep) is the segmented object. `caption` and `prompts` are the texts as
    far as the text encoder read them.
    """

    reconstruction: ImagePayload
    images: list[list[ImagePayload | None]]
    attention: list[ImagePayload]
    keep_mask: ImagePayload | None
    evaluations: EditEvaluations
    caption: str
    prompts: list[str]
    refusals: list[str | None] = Field(default_factory=list)


class Composition(Contract):
    """One image to compose: the object at a scale and place, perhaps mirrored, on a background.

    `background`: None is the source's own, with the object removed; any other is cropped and scaled to the source's
    size. With `clear` its own objects are removed first: those of `background_mask` (mode L, the background's size),
    or without one, those that the profile's segmenter detects. `place`: None keeps the object where it is.
    """

    background: ImagePayload | None = None
    background_mask: ImagePayload | None = None
    clear: bool = True
    scale: Scale = 1.0
    place: Place | None = None
    mirrored: bool = False


class ComposeRequest(Contract):
    """`POST /v1/compositions`: cut the object out of a source image and paste it, without a generator.

    `mask` (mode L, the source's size) is the object where it is not 0; None: what the profile's segmenter must keep.
    """

    editor: Literal["compose"] = "compose"
    source: ImagePayload
    mask: ImagePayload | None = None
    compositions: Annotated[list[Composition], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 2)]


class ComposeReply(Contract):
    """Images at the source's size, in the order of the request; null where a composition is refused.

    `refusals` has the reason for each composition, "" for those with an image. `mask` (mode L, 255 = object) is the
    object in the source, empty if there is none.
    """

    images: list[ImagePayload | None]
    refusals: list[str]
    mask: ImagePayload


class Corruption(Contract):
    """One corruption of the source. Severity 0 changes nothing: the null arm. `seed` determines all randomness."""

    kind: CorruptionKind
    severity: Annotated[int, Field(ge=0, le=SEVERITIES[-1])]
    seed: Annotated[int, Field(ge=0, lt=2**63)]


class CorruptRequest(Contract):
    """`POST /v1/corruptions`: classical corruptions of a source image, without any network."""

    editor: Literal["corruptions"] = "corruptions"
    source: ImagePayload
    corruptions: Annotated[list[Corruption], Field(min_length=1, max_length=MAX_IMAGES_PER_MESSAGE - 1)]


class CorruptReply(Contract):
    """Images at the source's size, in the order of the request."""

    images: list[ImagePayload]


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
