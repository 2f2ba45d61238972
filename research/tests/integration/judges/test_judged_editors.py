"""Editors under judgement: the edits they are given, and the drawings they return; the services are small."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gateway.methods import METHODS
from gateway.methods.lance import LANCE_FACTORS, PERTURB, perturb_messages, perturb_schema
from gateway.model_services.clients import ModelServices
from research.judges.editors import EDITORS, Faultless, edit_all, overlap, parameters_of
from research.judges.trials import TASK
from research.measure.counterfactuals import FIRST, OTHER_FACTOR, edits_in_turn, field_and_value
from shared.media.images import decode, encode
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import EditReply, EditRequest
from shared.schemas.language import GenerateRequest
from tests.support.small_services import SmallServices, open_clients
from tinyworld.objects.proposals import FIELDS


class Watching(SmallServices):
    """The small services, whose editor shows the left half when it is asked for attention."""

    def _edits(self, request: EditRequest) -> EditReply:
        reply = super()._edits(request)
        height, width = decode(request.source.png).shape[:2]
        left_half = np.zeros((height, width), np.uint8)
        left_half[:, : width // 2] = 255
        return reply.model_copy(update={"attention": [ImagePayload(png=encode(left_half))] * len(request.attention_to)})


@pytest.fixture(scope="module")
def services() -> Iterator[ModelServices]:
    with open_clients(Watching(), ModelServices) as clients:
        yield clients


@pytest.mark.parametrize("name", [name for name in EDITORS if EDITORS[name].method in ("shifts", "reconstruction")])
def test_a_method_is_given_known_captions_and_edits(services: ModelServices, name: str) -> None:
    proposals = list(enumerate(edits_in_turn(FIRST, 5, FIELDS), 7))
    draw = edit_all(services, EDITORS[name].method, parameters_of(EDITORS[name], load_profile("tiny")) | {"steps": 2})
    drawings = draw(proposals)
    kinds = ["null"] if name == "reconstruction" else ["edit", "null"]
    assert [(drawing.number, drawing.kind) for drawing in drawings] == [
        (number, kind) for number, _ in proposals for kind in kinds
    ]
    for drawing in drawings:
        proposal = dict(proposals)[drawing.number]
        assert drawing.image is not None
        assert drawing.edit.caption == proposal.edit.caption
        assert field_and_value(drawing.edit) == (proposal.field, str(getattr(proposal.target, proposal.field)))
        assert drawing.evaluations
        assert drawing.attention is not None
        assert 0 <= drawing.attention <= 1


def test_the_faultless_language_model_knows_one_edit_of_one_factor(services: ModelServices) -> None:
    (proposal,) = edits_in_turn(FIRST, 1, ["background"])
    faultless = Faultless(services, proposal.edit)
    for factor in LANCE_FACTORS:
        messages = perturb_messages(TASK, proposal.edit.caption, proposal.scene.label, factor, 2, PERTURB)
        value = faultless.generate(GenerateRequest(messages=messages, json_schema=perturb_schema(2))).value
        captions = [edit["caption"] for edit in value["edits"]]
        assert captions == ([proposal.edit.new_caption] if factor == "background" else [])


def test_words_outside_the_world_change_no_field() -> None:
    (proposal,) = edits_in_turn(FIRST, 1, ["colour"])
    strange = type(proposal.edit)(proposal.edit.changes, "A red bus. It is day.", "A red bus. It was day.")
    assert field_and_value(strange)[0] == OTHER_FACTOR
    gone = type(proposal.edit)(proposal.edit.changes, "A red bus by a forest.", "A red bus in a forest. It is night.")
    assert field_and_value(gone)[0] == OTHER_FACTOR, "two fields at once"
    swapped = type(proposal.edit)(proposal.edit.changes, "A red bus. It is day.", "A red car. It is day.")
    assert field_and_value(swapped) == ("label", "car")


def test_overlap_counts_as_many_pixels_as_the_object_has() -> None:
    mask = np.zeros((8, 8), bool)
    mask[:, :4] = True
    attention = np.zeros((8, 8), np.uint8)
    attention[:4] = 255  # the upper half: 16 of the 32 strongest pixels are the object's
    assert overlap(attention, mask) == pytest.approx(16 / 48)
    assert overlap(np.where(mask, 9, 3).astype(np.uint8), mask) == 1.0


def test_every_editor_is_a_method_with_parameters_that_it_takes() -> None:
    profile = load_profile("tiny")
    for editor in EDITORS.values():
        if editor.method in METHODS:
            METHODS[editor.method].parameters.model_validate(parameters_of(editor, profile))
