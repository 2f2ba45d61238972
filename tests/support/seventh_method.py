"""Old photographs: every image in sepia, by a caption that says so. The example of docs/how-to/add-a-method.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from gateway.methods import MethodSpec
from gateway.methods.checks import check_images, skipped_checks
from gateway.methods.counterfactual import Change, Edit, MethodCounterfactual, MethodImage, TaskDescription
from shared.endpoints import Services
from shared.schemas.base import Contract
from shared.schemas.caption import CaptionRequest
from shared.schemas.diffusion import Rendering, RenderRequest
from shared.seeds import derive_seed

REVISION = "1"


class SepiaParameters(Contract):
    """What a job may choose."""

    phrase: Annotated[str, Field(min_length=1, max_length=100, description="How the caption says it.")] = "in sepia"
    steps: Annotated[int, Field(ge=1, le=200, description="Steps of the diffusion.")] = 20
    thresholds: Annotated[dict[str, dict[str, float]], Field(description="Of the checks.", default_factory=dict)]


def sepia(
    image: MethodImage, task: TaskDescription, services: Services, parameters: SepiaParameters, seed: int
) -> Iterator[MethodCounterfactual]:
    """One counterfactual, and the null arm of the same seed."""
    caption = services.caption(CaptionRequest(images=[image.image])).captions[0]
    change = Change("domain", "", parameters.phrase, "", "sepia")
    edits = [Edit((change,), caption, f"{caption} {parameters.phrase}"), None]
    own_seed = derive_seed("sepia", REVISION, seed, image.id)
    prompts = [edit.new_caption if edit else caption for edit in edits]
    renderings = [Rendering(prompt=prompt, seed=own_seed) for prompt in prompts]
    reply = services.render(RenderRequest(source=image.image, renderings=renderings, steps=parameters.steps))
    checked = check_images(services, image, task, reply, edits, parameters.thresholds)
    lineage = {"caption": caption, "evaluations": reply.evaluations, "skipped_checks": skipped_checks(image, task)}
    for ordinal, (edit, picture, (verdict, scores)) in enumerate(zip(edits, reply.images, checked, strict=True)):
        null = 1 if edit else None
        yield MethodCounterfactual(
            ordinal, "edit" if edit else "null", own_seed, edit, null, picture, verdict, scores, lineage
        )


SPEC = MethodSpec(
    function=sepia,
    parameters=SepiaParameters,
    title="Sepia",
    paper="https://example.org/sepia",
    summary="Every image as an old photograph.",
    revision=REVISION,
)
