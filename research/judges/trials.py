"""The shipped services that render and check edits of drawn scenes, in this process.

For commands that measure or calibrate: the same editor, scorer and structure agreement that a job uses over HTTP, with
the profile's weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.few_steps import few_steps_of, load_networks
from diffusion_service.segmentation import Segmenter
from evaluator_service.model import agreement
from evaluator_service.similarity import Scorer
from gateway.methods.checks import check_images
from gateway.methods.counterfactual import Edit, MethodImage, Scores, TaskDescription, Verdict
from gateway.methods.dillema import DillemaParameters, region_of
from research.pictures.rendered_once import Pixels
from shared.chunks import chunks
from shared.media.images import decode, encode
from shared.profiles.arithmetic import native_weights
from shared.profiles.profile import Profile
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload
from shared.schemas.diffusion import Rendering, RenderReply
from shared.schemas.evaluation import EmbedReply, EmbedRequest, StructureReply, StructureRequest
from shared.service.settings import ServiceSettings
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, Scene

TASK = TaskDescription("name the vehicle, house or bird", CLASSES)


@dataclass(frozen=True, slots=True)
class Drawing:
    """A rendering request: an image of `prompt`, controlled by the source's edges that `edit` keeps."""

    source: Pixels
    prompt: str
    edit: Edit
    seed: int


class Evaluator:
    """The evaluator's two replies that the checks need."""

    def __init__(self, profile: Profile) -> None:
        self._scorer = Scorer(profile.evaluator.scorer, device="cpu")

    def embed(self, request: EmbedRequest) -> EmbedReply:
        pictures = [decode(image.png) for image in request.images]
        images = self._scorer.embed_images(pictures).tolist() if pictures else []
        texts = self._scorer.embed_texts(request.texts).tolist() if request.texts else []
        return EmbedReply(images=images, texts=texts, logit_scale=self._scorer.logit_scale)

    def structure(self, request: StructureRequest) -> StructureReply:
        source = decode(request.source.png)
        mask = None if request.mask is None else decode(request.mask.png, "L")
        return StructureReply(agreements=[agreement(source, decode(image.png), mask) for image in request.images])


class Studio:
    """The profile's generator, segmenter and checks."""

    def __init__(self, profile: Profile, parameters: DillemaParameters) -> None:
        """`parameters`: steps, guidance and control region of the drawings, thresholds of the checks."""
        if profile.diffusion.segmenter is None:
            raise SystemExit("the profile names no segmenter; add [diffusion.segmenter]")
        self.parameters = parameters
        self._segmenter = Segmenter(profile.diffusion.segmenter, profile.diffusion.keep_labels, device="cpu")
        diffusion = native_weights(torch, profile.diffusion, "cpu", ServiceSettings().dtype)
        weights = load_networks(diffusion, "cpu")
        few_step = few_steps_of(diffusion, weights)
        self._editor = ControlNetEditor(weights, self._segmenter, few_step)
        self._evaluator = Evaluator(profile)

    def draw(self, drawings: Sequence[Drawing]) -> list[Pixels | None]:
        """One batch of generated images; None if the region has no edges to condition on."""
        p = self.parameters
        items = [
            RenderItem(
                self._editor.source(drawing.source),
                Rendering(prompt=drawing.prompt, region=region_of(drawing.edit, p), seed=drawing.seed),
                "",
            )
            for drawing in drawings
        ]
        key = BatchKey(
            *items[0].source.geometry.padded,
            p.steps,
            p.guidance,
            p.strengths,
        )
        return [result.image if isinstance(result, Rendered) else None for result in self._editor.render(key, items)]

    def check(
        self, scene: Scene, source: Pixels, images: Sequence[Pixels], edits: Sequence[Edit | None]
    ) -> list[tuple[Verdict, Scores]]:
        """The verdicts of a job's checks on images of one source; None among the edits marks a null arm."""
        image = MethodImage(str(scene.geometry_seed), payload(source), scene.label)
        keep = payload(self._segmenter.keep_mask(source))
        size = MAX_IMAGES_PER_MESSAGE - 1
        verdicts: list[tuple[Verdict, Scores]] = []
        for images_of_batch, batch in zip(chunks(images, size), chunks(edits, size), strict=True):
            reply = RenderReply(images=list(map(payload, images_of_batch)), controls={}, keep_mask=keep, evaluations=0)
            verdicts += check_images(self._evaluator, image, TASK, reply, batch, self.parameters.thresholds)  # type: ignore[arg-type]
        return verdicts


def source_picture(scene: Scene) -> Pixels:
    """The render of a scene, in the form that the services take."""
    return np.ascontiguousarray(render(scene).image)


def payload(image: Pixels) -> ImagePayload:
    """The image as a payload of a service call."""
    return ImagePayload(png=encode(np.ascontiguousarray(image)))
