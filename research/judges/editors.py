"""The editors of all methods for measurements: edits of known scenes in, checked images out.

`control_editor` renders as DILLEMA does, in this process, many scenes in a batch. `edit_all` runs the other methods
themselves, with the model services in separate processes; only their captioner and language model are replaced by
faultless ones. So the measurement concerns the method's editing and its checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from gateway.jobs.choices import method_defaults
from gateway.methods import METHODS
from gateway.methods.counterfactual import Change, Edit, MethodCounterfactual, MethodImage, Scores, Verdict
from gateway.methods.dillema import DillemaParameters
from gateway.methods.inverted import InversionParameters, edit_request
from gateway.model_services.clients import ModelServices
from research.judges.trials import TASK, Drawing, Studio, payload, source_picture
from research.objects.pictures import render_pair
from research.pictures.rendered_once import Pixels
from research.system.spawn_services import spawn_services
from shared.media.images import decode
from shared.profiles.profile import Profile, load_profile
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.language import GenerateReply, GenerateRequest
from shared.schemas.service import ServiceName
from shared.seeds import derive_seed
from shared.service.endpoints import Endpoint, Reply, Request, Services
from tinyworld.objects.proposals import Proposal

AT_ONCE = 4  # source images in progress at the same time, so that their edits share batches
Kind = Literal["edit", "null"]
Parameters = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Editor:
    """A method, with parameters that override the profile's."""

    method: str
    parameters: Mapping[str, JsonValue]


WITHOUT_SHAM: Mapping[str, JsonValue] = {"reference": "null"}  # edits and null arms are judged here
EDITORS: dict[str, Editor] = {
    "dillema": Editor("dillema", {"control_region": "keep"}),
    "dillema-full": Editor("dillema", {"control_region": "full"}),
    "lance": Editor("lance", {"inversion": "direct", **WITHOUT_SHAM}),
    "lance-null-text": Editor("lance", {"inversion": "null_text", **WITHOUT_SHAM}),
    "lance-r": Editor("lance-r", {"counterfactuals_per_image": 1, **WITHOUT_SHAM}),
    "reconstruction": Editor("reconstruction", {}),
    "shifts": Editor("shifts", WITHOUT_SHAM),
}


@dataclass(frozen=True, slots=True)
class EditorResult:
    """Result of an edit of scene number `number`, or of its null arm; `image` is None if a text check refused it.

    `attention` is how much the source's attention to the class overlaps the object, if the editor reports it;
    `evaluations` is the number of network evaluations, if the editor counts them.
    """

    number: int
    kind: Kind
    source: Pixels
    edit: Edit
    image: Pixels | None
    verdict: Verdict
    scores: Scores
    evaluations: int | None = None
    attention: float | None = None


# Input: scenes with their numbers. Output: per scene the edit, and its null arm if there is one.
Draw = Callable[[Sequence[tuple[int, Proposal]]], list[EditorResult]]


@contextmanager
def drawing(name: str, profile: str, overrides: Parameters, null_every: int) -> Iterator[Draw]:
    """Start the editor of a name in `EDITORS`; `overrides` replaces some of its parameters.

    DILLEMA's null arms cost as much as its edits: it renders one for every `null_every`th scene only.
    """
    editor, loaded = EDITORS[name], load_profile(profile)
    parameters = parameters_of(editor, loaded, overrides)
    if editor.method == "dillema":
        yield control_editor(loaded, DillemaParameters.model_validate(parameters), null_every)
        return
    words: list[ServiceName] = ["llm_service"] if editor.method == "lance-r" else []
    with spawn_services(profile, ["diffusion_service", "evaluator_service", *words]) as services:
        yield edit_all(services, editor.method, parameters)


def parameters_of(editor: Editor, profile: Profile, overrides: Parameters | None = None) -> Parameters:
    """Parameters of the editor's method from the profile, with thresholds; the editor and `overrides` replace some."""
    if editor.method not in METHODS:
        raise ValueError(f"there is no method {editor.method!r}; there are {', '.join(METHODS)}")
    parameters = dict(editor.parameters) | (overrides or {})
    return method_defaults(editor.method, profile, parameters) | parameters


def control_editor(profile: Profile, parameters: DillemaParameters, null_every: int) -> Draw:
    """DILLEMA's rendering under edges, and its checks."""
    studio = Studio(profile, parameters)

    def draw(proposals: Sequence[tuple[int, Proposal]]) -> list[EditorResult]:
        arms: list[tuple[int, Kind, Proposal]] = []
        for number, proposal in proposals:
            arms.append((number, "edit", proposal))
            if number % null_every == 0:
                arms.append((number, "null", proposal))
        sources = [source_picture(proposal.scene) for _, _, proposal in arms]
        drawings = [
            Drawing(
                source,
                arm.edit.new_caption if kind == "edit" else arm.edit.caption,
                arm.edit,
                derive_seed("measured", arm.scene.geometry_seed),
            )
            for (_, kind, arm), source in zip(arms, sources, strict=True)
        ]
        results = []
        for (number, kind, arm), source, image in zip(arms, sources, studio.draw(drawings), strict=True):
            if image is None:
                continue
            edits = [arm.edit if kind == "edit" else None]
            ((verdict, scores),) = studio.check(arm.scene, source, [image], edits)
            results.append(EditorResult(number, kind, source, arm.edit, image, verdict, scores))
        return results

    return draw


def edit_all(services: ModelServices, method: str, parameters: Parameters) -> Draw:
    """A method that inverts the source image, with all of its own steps."""
    services.revision("diffusion_service")  # wait for it here, not in every thread

    def results_of(numbered: tuple[int, Proposal]) -> list[EditorResult]:
        return list(_counterfactuals(services, method, parameters, *numbered))

    def draw(proposals: Sequence[tuple[int, Proposal]]) -> list[EditorResult]:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return [result for results in pool.map(results_of, proposals) for result in results]

    return draw


def _counterfactuals(
    services: ModelServices, method: str, parameters_of_method: Parameters, number: int, proposal: Proposal
) -> Iterator[EditorResult]:
    source, edit = source_picture(proposal.scene), proposal.edit
    image = MethodImage(str(proposal.scene.geometry_seed), payload(source), proposal.scene.label)
    values = (
        {**parameters_of_method, "shifts": [_shift(edit.changes[0])]} if method == "shifts" else parameters_of_method
    )
    parameters = METHODS[method].parameters.model_validate(values)
    assert isinstance(parameters, InversionParameters)
    seed = derive_seed("measured", proposal.scene.geometry_seed)
    rows = list(METHODS[method].function(image, TASK, Faultless(services, edit), parameters, seed))
    attention = attention_overlap(services, source, proposal, parameters)
    changed = next((row for row in rows if row.edit and row.edit.changes), None)
    # A reconstruction changes nothing: it is the null arm of an edit that does not exist.
    null = next((row for row in rows if row.arm == "null" or not (row.edit and row.edit.changes)), None)
    for row in (changed, null):
        if row is not None:
            yield _result(number, source, row, edit, attention)


def _result(number: int, source: Pixels, row: MethodCounterfactual, proposed: Edit, attention: float) -> EditorResult:
    return EditorResult(
        number=number,
        kind="edit" if row.edit and row.edit.changes else "null",
        source=source,
        edit=row.edit if row.edit and row.edit.changes else proposed,
        image=None if row.image is None else decode(row.image.png),
        verdict=row.verdict,
        scores=dict(row.scores),
        evaluations=row.evaluations,
        attention=attention,
    )


def _shift(change: Change) -> JsonValue:
    replaced: list[JsonValue] = [change.from_phrase]
    return {"phrase": change.to_phrase, "factor": change.factor, "value": change.to_value, "replaces": replaced}


class Faultless(Services):
    """The services for one source image, with a faultless captioner and language model.

    The captioner returns the known caption. The language model answers LANCE's question with the known edit.
    """

    def __init__(self, services: ModelServices, edit: Edit) -> None:
        self._services = services
        self._edit = edit

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """See `Services.call`."""
        return self._services.call(endpoint, request)

    def caption(self, request: CaptionRequest) -> CaptionReply:
        """The known caption."""
        return CaptionReply(captions=[self._edit.caption] * len(request.images))

    def generate(self, request: GenerateRequest) -> GenerateReply:
        """The known edit if its factor is requested; no edit for another factor."""
        (change,) = self._edit.changes
        edit = {
            "from_phrase": change.from_phrase,
            "from_value": change.from_value,
            "to_phrase": change.to_phrase,
            "to_value": change.to_value,
            "caption": self._edit.new_caption,
        }
        matches = f"\nFactor: {change.factor}\n" in request.messages[-1].content
        value = {"edits": [edit] if matches else []}
        return GenerateReply(value=value, text="", attempts=1, prompt_tokens=0, completion_tokens=0)


def attention_overlap(services: Services, source: Pixels, proposal: Proposal, parameters: InversionParameters) -> float:
    """IoU of the object's mask and the pixels that attend most to the class word, equally many.

    The request has the parameters of the edit, so that the service reuses the edit's inversion.
    """
    request = edit_request(payload(source), parameters, proposal.edit.caption)
    reply = services.edit(request.model_copy(update={"attention_to": [proposal.scene.label]}))
    return overlap(decode(reply.attention[0].png, "L"), render_pair(proposal.scene)[1] == 1)


def overlap(attention: NDArray[np.uint8], mask: NDArray[np.bool_]) -> float:
    """IoU of a mask with the pixels of strongest attention (both height × width), as many as the mask has."""
    strongest = np.argsort(attention, axis=None, kind="stable")[::-1][: int(mask.sum())]
    overlap = int(mask.ravel()[strongest].sum())
    return overlap / (2 * int(mask.sum()) - overlap)
