"""Old photographs: every image in sepia, by a caption that says so. The example of docs/how-to/add-a-method.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from gateway.methods import MethodSpec, counterfactual
from gateway.methods.arms import RenderedArm, rows
from gateway.methods.checks import check_images
from gateway.methods.counterfactual import Change, Edit, MethodImage, MethodParameters, TaskDescription
from gateway.methods.schedule import Inputs, Proposal
from shared.schemas.caption import CaptionRequest
from shared.schemas.diffusion import Rendering, RenderRequest
from shared.service.endpoints import Services

REVISION = "1"


class SepiaParameters(MethodParameters):
    """What a job may choose."""

    phrase: Annotated[str, Field(min_length=1, max_length=100, description="How the caption says it.")] = "in sepia"
    steps: Annotated[int, Field(ge=1, le=200, description="Steps of the diffusion.")] = 20
    thresholds: Annotated[dict[str, dict[str, float]], Field(description="Of the checks.", default_factory=dict)]


def sepia(
    image: MethodImage, task: TaskDescription, services: Services, parameters: SepiaParameters, seed: int
) -> Iterator[counterfactual.MethodCounterfactual]:
    """One counterfactual, and the null arm of the same seed."""
    inputs = Inputs("sepia", REVISION, image, task, services, parameters, seed)
    caption = services.caption(CaptionRequest(images=[image.image])).captions[0]
    change = Change("domain", "", parameters.phrase, "", "sepia")
    proposal = Proposal(Edit((change,), caption, f"{caption} {parameters.phrase}"), inputs.derive_seed("render"))
    prompts = [proposal.edit.new_caption, caption]
    renderings = [Rendering(prompt=prompt, seed=proposal.seed) for prompt in prompts]
    reply = services.render(RenderRequest(source=image.image, renderings=renderings, steps=parameters.steps))
    checked = check_images(services, image, task, reply, [proposal.edit, None], parameters.thresholds)
    edited, null = [
        RenderedArm(picture, proposal.seed, verdict, scores, pair=None, evaluations=reply.evaluations)
        for picture, (verdict, scores) in zip(reply.images, checked, strict=True)
    ]
    yield from rows(inputs.lineage(), caption, [proposal], [edited], [null])


SPEC = MethodSpec(
    function=sepia,
    parameters=SepiaParameters,
    title="Sepia",
    paper="https://example.org/sepia",
    summary="Every image as an old photograph.",
    revision=REVISION,
)
