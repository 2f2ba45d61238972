"""Reconstruction: LANCE's control (arXiv 2305.19164, section 4.1). Invert the image, regenerate it, change nothing.

What a model under test does worse on the reconstruction it does worse because of autoencoder and inversion. There is
one counterfactual per source image, with no changes; its null arm is the source image itself. No check refuses it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.methods.checks import check_images, skipped_checks
from gateway.methods.counterfactual import Counterfactual, Edit, Services, SourceImage, TaskDescription, Verdict
from gateway.methods.inverted import InversionParameters, Pictures, caption_of, edited

REVISION = "1"  # raise it whenever the same replies would give other counterfactuals


def reconstruction(
    image: SourceImage, task: TaskDescription, services: Services, parameters: InversionParameters, seed: int
) -> Iterator[Counterfactual]:
    """The reconstruction of one source image. Nothing is drawn, so `seed` only names it."""
    caption = caption_of(image, services, parameters)
    reply = edited(image, services, parameters, caption)
    pictures = Pictures([reply.reconstruction], reply.keep_mask)
    [(_, scores)] = check_images(services, image, task, pictures, [None], {})
    yield Counterfactual(
        ordinal=0,
        arm="edit",
        seed=seed,
        edit=Edit((), caption, caption),
        null_ordinal=None,
        image=reply.reconstruction,
        verdict=Verdict(True),
        scores=scores,
        lineage={
            "method": "reconstruction",
            "revision": REVISION,
            "parameters": parameters.model_dump(mode="json"),
            "skipped_checks": list(skipped_checks(image, task)),
            "caption": caption,
            "evaluations": reply.evaluations.inversion,
        },
    )
