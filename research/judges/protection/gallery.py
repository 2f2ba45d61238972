"""Draw edits under protections, many in a batch, with the weights of a profile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from pydantic import ValidationError

from diffusion_service.control_images import ControlImages, DepthEstimator
from diffusion_service.editors.controlnet import BatchKey, ControlNetEditor, Rendered, RenderItem
from diffusion_service.few_steps import few_steps_of, load_networks
from diffusion_service.model import palette
from diffusion_service.segmentation import Segmenter
from gateway.jobs.choices import method_defaults
from gateway.methods.dillema import DillemaParameters, region_of
from research.judges.protection.domain import ProtectedEdit, ProtectedThing, ProtectionDomain, overlaps
from research.pictures.rendered_once import Pixels
from shared.chunks import chunks
from shared.problems import validation_sentence
from shared.profiles.arithmetic import native_weights
from shared.profiles.diffusion import Diffusion
from shared.profiles.profile import Profile
from shared.schemas.diffusion import Controls, Protection, Rendering
from shared.seeds import derive_seed
from shared.service.settings import ServiceSettings


class Gallery:
    """Draws the edits under arms, many in a batch, with the profile's weights."""

    def __init__(self, profile: Profile, domain: ProtectionDomain, controls: Sequence[str] = ()) -> None:
        """`controls` (kind, or kind:scale) replace the profile's.

        Raises SystemExit if the profile lacks a control, or a segmenter with the protected labels.
        """
        if profile.diffusion.segmenter is None:
            raise SystemExit("the profile names no segmenter; add [diffusion.segmenter]")
        self._parameters = parameters(profile, controls)
        self.segmenter = Segmenter(profile.diffusion.segmenter, profile.diffusion.keep_labels, device="cpu")
        if unknown := [label for label in domain.protected if label not in self.segmenter.labels]:
            raise SystemExit(f"the profile's segmenter knows no {', '.join(unknown)}; it is of another domain")
        diffusion = native_weights(torch, profile.diffusion, "cpu", ServiceSettings().dtype)
        weights = load_networks(diffusion, "cpu")
        few_step = few_steps_of(diffusion, weights)
        self._editor = ControlNetEditor(weights, _control_images(profile.diffusion, self.segmenter), few_step)
        self._domain = domain

    @property
    def controls(self) -> Controls:
        """The controls of every image."""
        return self._parameters.strengths

    @property
    def own_arm(self) -> str:
        """The arm of the profile's defaults."""
        p = self._parameters
        return f"{p.protection.by}:{p.protection.strength:g}" if p.protect else "none"

    def draw(self, request: ProtectedEdit, arms: Sequence[str]) -> Iterator[tuple[str, Pixels, Pixels]]:
        """Yield the name, the counterfactual and the null arm of each arm."""
        p = self._parameters
        source = self._editor.source(request.source)
        key = BatchKey(*source.geometry.padded, p.steps, p.guidance, p.strengths)
        seed, region = derive_seed("protected", request.id), region_of(request.edit, p, masked=self._domain.masked)
        items = [
            RenderItem(source, Rendering(prompt=prompt, region=region, seed=seed), "", self._protection(arm))
            for arm in arms
            for prompt in (request.edit.new_caption, request.edit.caption)
        ]
        for pair, arm in zip(chunks(items, 2), arms, strict=True):
            edit, null = self._editor.render(key, pair)
            assert isinstance(edit, Rendered), edit
            assert isinstance(null, Rendered), null
            yield arm, edit.image, null.image

    def _protection(self, arm: str) -> Protection | None:
        way, _, strength = arm.partition(":")
        if way == "none":
            return None
        return Protection.model_validate(
            {"classes": self._domain.protected, "by": way, "strength": float(strength or 0.5)}
        )

    def ious(self, image: Pixels, things: Sequence[ProtectedThing]) -> list[float]:
        """The IoU of each thing with the pixels of its label in the image."""
        return overlaps(self.segmenter.label_map(image), self.segmenter.labels, things, self._domain.overlap)


def parameters(profile: Profile, controls: Sequence[str]) -> DillemaParameters:
    """The profile's parameters; `controls` (`canny` or `canny:0.8`) replace its controls.

    Raises SystemExit for a control that the profile lacks, that is named twice or has no weight from 0 to 2.
    """
    parts = [control.partition(":") for control in controls]
    parameters: dict[str, object] = dict(method_defaults("dillema", profile))
    if parts:
        parameters["controls"] = [{"kind": kind, "scale": scale or 1.0} for kind, _, scale in parts]
    try:
        parameters_of_method = DillemaParameters.model_validate(parameters)
    except ValidationError as error:
        raise SystemExit(f"--controls: {validation_sentence(error.errors())}") from error
    there = profile.diffusion.controlnets
    if missing := [control.kind for control in parameters_of_method.strengths if control.kind not in there]:
        raise SystemExit(f"the profile has no control {', '.join(missing)}; it has {', '.join(there)}")
    return parameters_of_method


def _control_images(profile: Diffusion, segmenter: Segmenter) -> ControlImages:
    colours = None if profile.palette is None else palette(profile.palette, segmenter.labels)
    depth = None if profile.depth is None else DepthEstimator(profile.depth, device="cpu")
    return ControlImages(segmenter, colours, depth)
