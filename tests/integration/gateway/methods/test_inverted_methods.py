"""Reconstruction and shifts: rows, batched requests, refusals by words; the services are small."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

from gateway.analysis.effects import Outcomes
from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual
from gateway.jobs.choices import methods_listing
from gateway.methods.counterfactual import Edit, MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.inverted import InversionParameters, prompt_edit
from gateway.methods.paraphrase import LEAD
from gateway.methods.reconstruction import reconstruction
from gateway.methods.shifts import Shift, ShiftsParameters, apply_shift, shifts
from gateway.results.job_rows import load_rows
from shared.media.images import encode
from shared.media.storage import DirectoryStore
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from tests.support.databases import ON_SQLITE
from tests.support.json_values import value_at
from tests.support.logged_requests import LoggedServices
from tests.support.small_services import CAPTION, CLASSES, SmallServices, serve
from tests.support.work_site import Site

SOURCE = MethodImage("source-1", ImagePayload(png=encode(np.full((32, 32, 3), 128, np.uint8))), "car")
TASK = TaskDescription("name the vehicle", tuple(CLASSES))
NIGHT = {"phrase": "at night", "factor": "weather", "value": "night"}


def shifts_of(services: LoggedServices, **parameters: object) -> list[MethodCounterfactual]:
    """Without sham arms, unless `reference` is given."""
    return list(shifts(SOURCE, TASK, services, ShiftsParameters.model_validate({"reference": "null"} | parameters), 1))


def test_a_shift_stands_in_place_of_what_it_replaces_or_at_the_end_of_the_first_sentence() -> None:
    night = Shift(phrase="at night", replaces=("in fog", "By Day"))
    assert apply_shift("A bus by day. It stands.", night) == ("By Day", "A bus at night. It stands.")
    assert apply_shift("A bus on holiday. It stands.", night) == ("", "A bus on holiday at night. It stands.")
    assert apply_shift("A bus, No. 5 in town", night) == ("", "A bus, No. 5 in town at night")
    assert apply_shift("A bus", night) == ("", "A bus at night")


def test_all_shifts_and_their_null_arm_are_one_request(services: LoggedServices) -> None:
    rows = shifts_of(services, shifts=[NIGHT, {"phrase": "rainy", "replaces": ["sunny"]}], steps=4, self_fraction=0.5)
    (request,) = services.edits
    prompts = [
        "A red car on a street at night. It is a sunny day.",
        "A red car on a street. It is a rainy day.",
        CAPTION,
    ]
    assert [edit.prompt for edit in request.edits] == prompts
    assert (request.caption, request.self_fractions, request.steps) == (CAPTION, [0.5], 4)
    assert [(row.ordinal, row.arm, row.null_ordinal) for row in rows] == [
        (0, "edit", 2),
        (1, "edit", 2),
        (2, "null", None),
    ]
    assert [row.evaluations for row in rows] == [8 + 3] * 3, "inversion and source row are shared out"
    change = rows[1].edit.changes[0] if rows[1].edit else None
    assert change is not None
    assert (change.factor, change.from_value, change.to_value) == ("other", "sunny", "rainy")
    assert all(row.scores["structure"] == 1.0 for row in rows)


def test_attention_weights_and_blend_are_sent_with_the_edits_and_not_with_the_null_arm(
    services: LoggedServices,
) -> None:
    replaced = {"phrase": "rainy", "replaces": ["sunny"]}
    shifts_of(services, shifts=[NIGHT, replaced], attention="refine", reweight=2.0, blend=True)
    (request,) = services.edits
    night, rainy, null = request.edits
    assert [edit.attention for edit in (night, rainy)] == ["refine", "refine"]
    assert [(weight.phrase, weight.weight) for edit in (night, rainy) for weight in edit.weights] == [
        ("at night", 2.0),
        ("rainy", 2.0),
    ]
    assert night.blend is None, "an added phrase has no old phrase to blend with"
    assert rainy.blend is not None
    assert (rainy.blend.source_phrase, rainy.blend.phrase) == ("sunny", "rainy")
    assert (null.weights, null.blend) == ([], None)


def test_the_words_of_a_paraphrase_weigh_as_much_as_those_of_an_edit(services: LoggedServices) -> None:
    """In `paper` an edit's words weighed 2 and the sham edit's 1, so the effect contained the weight."""
    replaced = {"phrase": "rainy", "replaces": ["sunny"]}
    shifts_of(services, shifts=[replaced], attention="refine", reweight=2.0, reference="sham")
    weighed = {edit.prompt: [(each.phrase, each.weight) for each in edit.weights] for edit in services.edits[0].edits}
    assert weighed == {
        CAPTION.replace("sunny", "rainy"): [("rainy", 2.0)],
        CAPTION: [],
        CAPTION.replace("on a street", "on a road"): [("road", 2.0)],
    }
    parameters = ShiftsParameters(shifts=(Shift(phrase="rainy"),), reweight=2.0)
    for text, words in ((f"{LEAD} {CAPTION}", ["The picture shows this"]), ("B" * 201, [])):
        weights = prompt_edit(parameters, Edit((), CAPTION, text)).weights
        assert [each.phrase for each in weights] == words


def test_an_edit_that_the_editor_refuses_is_rejected_by_name_and_the_others_are_kept(services: LoggedServices) -> None:
    services.refused_prompt = CAPTION.replace("sunny", "rainy")
    night, rainy, null = shifts_of(services, shifts=[NIGHT, {"phrase": "rainy", "replaces": ["sunny"]}])
    assert (night.verdict.accepted, night.image is not None, null.arm) == (True, True, "null")
    assert (rainy.verdict.check, rainy.verdict.reason, rainy.image) == ("editor", "too long", None)


def test_shifts_that_words_refuse_are_kept_and_never_rendered(services: LoggedServices) -> None:
    refused = [
        ({"phrase": "on a street"}, "no change"),
        ({"phrase": "beside a bus"}, "other class"),
        ({"phrase": "beside a red car"}, "class words"),
        ({"phrase": "on a boat", "replaces": ["on a street"]}, "other class"),
        ({"phrase": "a truck", "replaces": ["a red car"]}, "class kept"),
    ]
    rows = shifts_of(services, shifts=[shift for shift, _ in refused])
    assert [(row.verdict.check, row.image, row.null_ordinal) for row in rows] == [
        (check, None, None) for _, check in refused
    ]
    assert services.edits == [], "without an edit there is no inversion, and no null arm"
    rows = shifts_of(services, shifts=[refused[0][0], NIGHT])
    assert [(row.arm, row.image is not None, row.null_ordinal) for row in rows] == [
        ("edit", False, None),
        ("edit", True, 2),
        ("null", True, None),
    ]


def test_shifts_are_judged_by_the_profiles_thresholds(services: LoggedServices) -> None:
    (edit, null) = shifts_of(services, shifts=["at night"], thresholds={"structure": {"default": 1.1}})
    assert (edit.verdict.accepted, edit.verdict.check) == (False, "structure")
    assert null.verdict.accepted


def test_senseless_shifts_are_refused() -> None:
    for wrong in ([], ["at night", "At night"], ["x" * 200], [{"phrase": "a", "colour": 1}]):
        with pytest.raises(ValueError, match=r"shifts|phrase|colour"):
            ShiftsParameters.model_validate({"shifts": wrong})


def test_a_reconstruction_is_the_source_branch_and_has_the_source_for_null_arm(services: LoggedServices) -> None:
    (row,) = reconstruction(SOURCE, TASK, services, InversionParameters(steps=4, inversion="null_text"), 1)
    (request,) = services.edits
    assert (request.edits, request.inversion, request.steps) == ([], "null_text", 4)
    assert (row.arm, row.null_ordinal, row.verdict.accepted) == ("edit", None, True)
    assert row.edit is not None
    assert (row.edit.changes, row.edit.caption, row.edit.new_caption) == ((), CAPTION, CAPTION)
    assert row.evaluations == 4


@ON_SQLITE
def test_a_job_of_both_gives_rows_that_are_counted(sessions: Sessions, tmp_path: Path) -> None:
    small = SmallServices()
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        site.add_job(
            images=3, methods=[{"name": "reconstruction", "parameters": {}}, {"name": "shifts", "parameters": {}}]
        )
        site.worker().step()
        assert site.state() == "done"
        assert small.calls["edit"] == 3 + 12  # reconstructions; edits, null arms and sham arms are calls of their own
        with sessions() as session:
            rows = load_rows(session, "job")
            cells = session.scalars(
                select(Counterfactual.to_value).where(Counterfactual.method == "shifts", Counterfactual.arm == "edit")
            ).all()
        reconstructed = rows.models["m1", "reconstruction"]
        rebuilt = reconstructed.scores
        assert isinstance(rebuilt, Outcomes)
        assert (len(rebuilt.source), reconstructed.left_out, rebuilt.cells) == (3, 0, {})
        assert np.array_equal(rebuilt.ranks.null.predicted, rebuilt.ranks.original.predicted)
        assert Counter(cells) == {"night": 3, "snow": 3}
        for client in site.clients:
            client.close()


def test_they_are_listed_with_their_parameters() -> None:
    listed = {method.name: method for method in methods_listing(load_profile("tiny")).methods}
    assert "null_text" in str(listed["reconstruction"].parameters)
    assert value_at(listed["shifts"].parameters, "properties", "shifts", "default", 0, "phrase") == "at night"
