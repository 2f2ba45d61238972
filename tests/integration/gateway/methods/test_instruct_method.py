"""Instruct: instructions by the language model, a rule or the user; null arms; refusals; the services are small."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual
from gateway.jobs.backgrounds import check_compositions
from gateway.jobs.choices import plan
from gateway.jobs.designs import with_design
from gateway.methods.counterfactual import MethodCounterfactual
from gateway.methods.instruct import SHAM_INSTRUCTION, InstructParameters, instruct
from gateway.methods.proposed_values import ProposedValues
from gateway.worker.replay import replay
from shared.media.storage import DirectoryStore
from shared.problems import InvalidInput
from shared.profiles.instruct import InstructServer
from shared.profiles.profile import Profile, load_profile
from shared.profiles.weights import Server
from shared.schemas.diffusion import MAX_INSTRUCTED_EDITS
from shared.schemas.jobs import JobSpec
from shared.schemas.language import GenerateReply, GenerateRequest
from tests.support.databases import ON_SQLITE
from tests.support.lance_services import SOURCE, TASK, CaptioningServices, LanceServices
from tests.support.small_services import CAPTION, open_clients, serve
from tests.support.work_site import Site

ANYTHING = {"caption": {"default": -2.0}}
NIGHT = {"instruction": "Make it night.", "factor": "weather", "value": "night", "phrase": "at night"}


class InstructingServices(LanceServices):
    """A language model that also writes instructions on request."""

    def _generate(self, request: GenerateRequest) -> GenerateReply:
        reply = super()._generate(request)
        properties = request.json_schema["properties"]["edits"]["items"]["required"]
        value: Any = reply.value
        if "instruction" in properties:
            value = {"edits": [{**edit, "instruction": f"Show {edit['to_value']}."} for edit in value["edits"]]}
        return reply.model_copy(update={"value": value, "text": json.dumps(value)})


@pytest.fixture
def services() -> Iterator[CaptioningServices]:
    with open_clients(InstructingServices(), CaptioningServices) as clients:
        yield clients


def rows_of(services: CaptioningServices, source: Any = SOURCE, **parameters: Any) -> list[MethodCounterfactual]:
    chosen = InstructParameters.model_validate({"steps": 4, "thresholds": ANYTHING} | parameters)
    return list(instruct(source, TASK, services, chosen, 1))


def test_the_language_models_instructions_are_carried_out_beside_one_null_arm(services: CaptioningServices) -> None:
    rows = rows_of(services)
    (request,) = services.instructed
    instructions = [edit.instruction for edit in request.edits]
    assert instructions == ["Show beach.", "Show rainy.", "Show park.", SHAM_INSTRUCTION]
    assert len({edit.seed for edit in request.edits}) == 1, "the null arm has the seed of its edits"
    assert (request.steps, request.guidance, request.image_guidance, request.region) == (4, 7.5, 1.5, "all")
    edits = [row for row in rows if row.arm == "edit" and row.image is not None]
    (null,) = (row for row in rows if row.arm == "null")
    assert {row.null_ordinal for row in edits} == {null.ordinal}
    assert (null.lineage["rendering"] or {})["instruction"] == SHAM_INSTRUCTION
    assert [row.lineage["instruction"] for row in edits] == instructions[:3]
    assert [row.edit.new_caption for row in edits if row.edit] == [
        CAPTION.replace("on a street", "on a beach"),
        CAPTION.replace("sunny", "rainy"),
        CAPTION.replace("on a street", "in a well-kept park"),
    ]
    for row in edits:
        assert {"likeness", "match", "caption", "direction", "label"} <= set(row.scores)
        assert (row.evaluations, row.null_check) == (12, ""), "three passes in each of four steps"
    assert all(row.sham_ordinal is None for row in rows)
    assert services.edits == []


def test_words_refuse_edits_before_the_editor_sees_them(services: CaptioningServices) -> None:
    refused = {row.verdict.check: row for row in rows_of(services) if row.arm == "edit" and row.image is None}
    assert set(refused) == {"class words", "word diff", "duplicate edit"}
    assert all(row.evaluations == 0 and row.lineage["exchanges"][0]["reply"] for row in refused.values())
    bus = {**NIGHT, "instruction": "Make it night and add a bus."}
    present = {"instruction": "Put it on a street.", "value": "street", "phrase": "on a street"}
    people = {"instruction": "Add an elderly woman.", "value": "person"}
    rows = rows_of(services, instructions=[bus, present, people])
    assert [row.verdict.check for row in rows] == ["other class", "no change", "protected characteristic"]
    (before,) = services.instructed
    assert all("bus" not in edit.instruction for edit in before.edits), "nothing was sent for these"


def test_a_rule_words_the_edits_of_lances_question(services: CaptioningServices) -> None:
    rows = rows_of(services, wording="rule", factors=["weather"])
    assert [row.lineage["instruction"] for row in rows if row.image and row.arm == "edit"] == ["Change sunny to rainy."]
    (exchange,) = rows[0].lineage["exchanges"]
    assert (exchange["question"], "instruction" in exchange["reply"]) == ("perturb", False)


def test_given_instructions_are_carried_out_in_every_image(services: CaptioningServices) -> None:
    snow = {"instruction": "Let it snow.", "factor": "weather", "value": "snow"}
    night, snowy, plain, null = rows_of(services, instructions=[NIGHT, snow, "Blur the background"])
    assert night.edit is not None
    assert snowy.edit is not None
    assert plain.edit is not None
    assert night.edit.new_caption == "A red car on a street at night. It is a sunny day."
    assert (snowy.edit.new_caption, snowy.edit.changes[0].to_value) == (f"{CAPTION} Snow.", "snow")
    assert plain.edit.changes[0].to_value == "Blur the background"
    assert [row.verdict.accepted for row in (night, snowy, plain, null)] == [True] * 4
    assert all("exchanges" not in row.lineage for row in (night, snowy, plain)), "no language model is asked"


def test_each_seed_has_its_null_arm_and_long_jobs_their_messages(services: CaptioningServices) -> None:
    rows = rows_of(services, seeds_per_edit=5)
    edits = [row for row in rows if row.arm == "edit" and row.image]
    nulls = {row.ordinal: row.seed for row in rows if row.arm == "null"}
    assert (len(edits), len(set(nulls.values()))) == (15, 5)
    assert all(row.seed == nulls[row.null_ordinal or 0] for row in edits)
    assert [len(request.edits) for request in services.instructed] == [MAX_INSTRUCTED_EDITS, 20 - MAX_INSTRUCTED_EDITS]


def test_what_the_editor_refuses_is_refused_by_name(services: CaptioningServices) -> None:
    refused, night, _ = rows_of(services, instructions=["Refuse this", NIGHT])
    assert (refused.verdict.check, refused.verdict.reason, refused.image) == ("editor", "it will not", None)
    assert (refused.evaluations, night.verdict.accepted) == (0, True)
    (lost,) = (row for row in rows_of(services, instructions=[NIGHT], sham_instruction="Refuse") if row.image)
    assert lost.verdict.check == "null arm"


def test_the_objects_mask_travels_only_where_it_restricts_the_edit(services: CaptioningServices) -> None:
    masked = replace(SOURCE, object_mask=SOURCE.image)
    rows_of(services, masked, instructions=[NIGHT])
    rows_of(services, masked, instructions=[NIGHT], region="background")
    assert [(request.region, request.mask is None) for request in services.instructed] == [
        ("all", True),
        ("background", False),
    ]


def test_chosen_values_are_properties_by_name(services: CaptioningServices) -> None:
    values = [{"factor": "weather", "value": "rainy"}, {"factor": "weather", "value": "snow"}]
    rainy, snow, _ = rows_of(services, values=values)
    assert (rainy.lineage["instruction"], rainy.verdict.accepted) == ("Show rainy.", True)
    assert (snow.verdict.check, snow.image) == ("chosen value", None)


def test_senseless_instructions_are_refused() -> None:
    for wrong in (
        [NIGHT, NIGHT],
        [""],
        ["x" * 200],
        [{"instruction": "Make it night.", "replaces": ["by day"]}],
        [{**NIGHT, "colour": 1}],
    ):
        with pytest.raises(ValueError, match=r"instruction|value|phrase|colour"):
            InstructParameters.model_validate({"instructions": wrong})


def with_editor(profile: Profile) -> Profile:
    server = Server(url="http://127.0.0.1:9/v1", model="m", revision="1", licence="none", gigabytes=1)
    editor = InstructServer.model_validate({"engine": "server", "server": server})
    return profile.model_copy(update={"diffusion": profile.diffusion.model_copy(update={"instruct": editor})})


def spec_of(design: str = "free", **parameters: Any) -> JobSpec:
    methods = [{"name": "instruct", "parameters": parameters}]
    return JobSpec.model_validate({"task": "name it", "models": [], "methods": methods, "design": design})


def test_a_profile_without_an_editor_refuses_the_method() -> None:
    with pytest.raises(InvalidInput, match=r"\[diffusion.instruct\]"):
        plan(spec_of(), load_profile("paper"), [])


def test_a_region_is_refused_unless_editor_and_masks_allow_it() -> None:
    modern, server = load_profile("modern"), with_editor(load_profile("tiny"))
    with pytest.raises(InvalidInput, match="'all'"):
        plan(spec_of(region="background"), modern, [])
    around, everywhere = (plan(spec_of(region=region), server, []) for region in ("background", "all"))
    check_compositions(around, server, object_masks=True)
    check_compositions(around, server, object_masks=False)  # by the profile's segmenter
    with pytest.raises(InvalidInput, match="`region` background"):
        check_compositions(everywhere, server, object_masks=True)
    blind = server.model_copy(update={"diffusion": server.diffusion.model_copy(update={"segmenter": None})})
    with pytest.raises(InvalidInput, match=r"instruct needs .* masks"):
        check_compositions(around, blind, object_masks=False)


def test_a_balanced_design_chooses_its_values_unless_instructions_are_given() -> None:
    profile = load_profile("tiny")
    usual = ProposedValues(profile.defaults.values, "profile", {})
    for parameters, values in (({}, True), ({"instructions": [NIGHT]}, False)):
        spec = spec_of("balanced", **parameters)
        (method,) = with_design(plan(spec, profile, []), spec, lambda _: usual, 10).methods
        assert isinstance(method.parameters, InstructParameters)
        assert bool(method.parameters.values) == values


@pytest.mark.slow
@ON_SQLITE
def test_a_job_is_counted_resumed_from_records_and_replayed(sessions: Sessions, tmp_path: Path) -> None:
    small = InstructingServices()
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        parameters = {"instructions": [NIGHT], "steps": 2, "thresholds": {}}
        site.add_job(images=3, methods=[{"name": "instruct", "parameters": parameters}])
        site.worker().step()
        assert site.state() == "done"
        assert small.calls["instruct"] == 6  # an edit and a null arm for each image
        with sessions() as session:
            counterfactuals = session.scalars(select(Counterfactual)).all()
        arms = Counter((row.arm, row.to_value) for row in counterfactuals)
        assert arms == {("edit", "night"): 3, ("null", None): 3}
        edit = next(row for row in counterfactuals if row.arm == "edit")
        assert edit.lineage["instruction"] == "Make it night."
        replayed = replay(sessions, site.store, site.clients[0], edit.id)
        assert replayed.equal, replayed.differences
        for client in site.clients:
            client.close()
