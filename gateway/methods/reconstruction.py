"""Reconstruction: LANCE's control (arXiv 2305.19164, section 4.1). Invert the image, regenerate it, change nothing.

It measures the effect of autoencoder and inversion alone on a model under test. There is one counterfactual per source
image, without changes. Its null arm is the source image itself, and no check refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.methods.arms import RenderedArm, rows
from gateway.methods.caption import write_caption
from gateway.methods.checks import Pictures, check_images
from gateway.methods.counterfactual import Edit, MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.inverted import InversionParameters, edit_request
from gateway.methods.schedule import Inputs, Proposal
from shared.service.endpoints import Services

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals


def reconstruction(
    image: MethodImage, task: TaskDescription, services: Services, parameters: InversionParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """The reconstruction of one source image. It is not random; `seed` is only recorded."""
    inputs = Inputs("reconstruction", REVISION, image, task, services, parameters, seed)
    caption = write_caption(image, services, parameters)
    unchanged = Proposal(Edit((), caption, caption), seed)
    arm = reconstruct(inputs, caption)
    yield from rows(inputs.lineage(), caption, [unchanged], [arm], nulls=None)


def reconstruct(inputs: Inputs[InversionParameters], caption: str) -> RenderedArm[None]:
    """The source image inverted under its caption and regenerated, with its scores."""
    reply = inputs.services.edit(edit_request(inputs.image.image, inputs.parameters, caption))
    pictures = Pictures([reply.reconstruction], reply.keep_mask)
    [(verdict, scores)] = check_images(inputs.services, inputs.image, inputs.task, pictures, [None], {})
    cost = reply.evaluations.inversion
    return RenderedArm(reply.reconstruction, inputs.seed, verdict, scores, pair=None, evaluations=cost)
