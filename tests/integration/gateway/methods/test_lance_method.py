"""LANCE: rows, batched requests, refusals by words and by images; the services are small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual
from gateway.methods.counterfactual import MethodCounterfactual
from gateway.methods.lance import LANCE_FACTORS, LanceParameters, lance
from gateway.results.job_rows import load_rows
from shared.media.storage import DirectoryStore
from shared.problems import GenerationFailed
from shared.schemas.language import GenerateReply, GenerateRequest
from tests.support.databases import ON_SQLITE
from tests.support.lance_services import SOURCE, TASK, CaptioningServices, LanceServices
from tests.support.small_services import CAPTION, open_clients, serve
from tests.support.work_site import Site


@pytest.fixture
def services() -> Iterator[CaptioningServices]:
    with open_clients(LanceServices(), CaptioningServices) as clients:
        yield clients


def lance_of(services: CaptioningServices, **parameters: Any) -> list[MethodCounterfactual]:
    """Without sham arms, unless `reference` is given."""
    anything = {"caption": {"default": -2.0}}
    defaults = {
        "self_fractions": [0.7, 0.4],
        "steps": 4,
        "caption_prompt": "",
        "thresholds": anything,
        "reference": "null",
    }
    chosen = defaults | parameters
    return list(lance(SOURCE, TASK, services, LanceParameters.model_validate(chosen), 1))


def test_edits_are_rendered_under_all_fractions_in_one_request_and_the_best_is_kept(
    services: CaptioningServices,
) -> None:
    rows = lance_of(services)
    edits, nulls = [row for row in rows if row.arm == "edit"], [row for row in rows if row.arm == "null"]
    first, second = services.edits
    assert [edit.prompt for edit in first.edits] == [
        CAPTION.replace("on a street", "on a beach"),
        CAPTION.replace("sunny", "rainy"),
        CAPTION.replace("on a street", "in a well-kept park"),
    ], "the first edit of each factor, then the second ones"
    assert (first.self_fractions, first.caption, first.steps) == ([0.4, 0.7], CAPTION, 4)
    assert [edit.prompt for edit in second.edits] == [CAPTION], "null arms are asked together"
    rendered = [row for row in edits if row.image is not None]
    assert len(rendered) == 3
    for row in rendered:
        tried = row.lineage["sweep"]
        assert [a["self_fraction"] for a in tried] == [0.4, 0.7]
        assert row.scores["direction"] == max(a["scores"]["direction"] for a in tried)
        assert {"likeness", "match", "caption", "direction", "class_words"} <= set(row.scores)
        null = rows[row.null_ordinal or 0]
        assert null.lineage["self_fraction"] == row.lineage["self_fraction"]
    assert second.self_fractions == sorted({row.lineage["self_fraction"] for row in rendered})
    assert [row.ordinal for row in rows] == list(range(len(rows)))
    assert len(nulls) == len(second.self_fractions)
    assert rendered[0].evaluations == round((4 + 4) / 3) + 2 * 8


def test_what_words_refuse_is_kept_with_its_reason_and_never_rendered(services: CaptioningServices) -> None:
    refusal = {
        (row.edit.changes[0].factor, row.verdict.check): row
        for row in lance_of(services)
        if row.edit and row.image is None
    }
    assert set(refusal) == {("subject", "class words"), ("adjective", "word diff"), ("weather", "duplicate edit")}
    assert "“sunny” → “rainy”" in refusal["adjective", "word diff"].verdict.reason
    assert all(row.null_ordinal is None and row.evaluations == 0 for row in refusal.values())
    assert all(row.lineage["exchanges"][0]["reply"] for row in refusal.values())


def test_factors_and_numbers_are_as_asked(services: CaptioningServices) -> None:
    rows = lance_of(services, factors=["weather", "background", "weather"], counterfactuals_per_image=2)
    factors = [row.edit.changes[0].factor for row in rows if row.edit]
    assert factors == ["weather", "background"]
    assert len(lance_of(services, factors=["background"], edits_per_factor=1)) == 2
    assert lance_of(services, factors=["domain", "object"]) == [], "a caption that says nothing of them"


def test_many_edits_and_fractions_travel_in_several_messages(services: CaptioningServices) -> None:
    fractions = [0.1 * n for n in range(8)]
    rows = lance_of(services, self_fractions=fractions)
    assert [len(request.edits) for request in services.edits] == [1, 1, 1, 1]
    assert all(len(row.lineage["sweep"]) == 8 for row in rows if row.image and row.arm == "edit")


def test_no_edit_no_inversion(services: CaptioningServices) -> None:
    rows = lance_of(services, factors=["adjective"])
    assert [row.verdict.check for row in rows] == ["word diff"]
    assert services.edits == []


def test_a_source_that_its_caption_does_not_fit_is_not_inverted(services: CaptioningServices) -> None:
    passed = lance_of(services, source_match=-1.0)
    scores = {row.scores["source_match"] for row in passed if row.arm == "edit" and row.image is not None}
    (cosine,) = scores
    plain = lance_of(services)
    assert [row.image for row in passed] == [row.image for row in plain]
    assert not any("source_match" in row.scores for row in plain)
    services.edits.clear()
    refused = lance_of(services, source_match=cosine + 0.01)
    assert services.edits == []
    assert [row.arm for row in refused] == ["edit"] * len(refused)
    assert [row.verdict.check for row in refused].count("source match") == 3
    assert {row.verdict.check for row in refused} == {"source match", "class words", "word diff", "duplicate edit"}


def test_images_are_refused_by_the_thresholds_of_their_factor(services: CaptioningServices) -> None:
    limits = {"direction": {"default": -1.0, "weather": 2.0}, "caption": {"default": -2.0}}
    rows = lance_of(services, thresholds=limits)
    verdicts = {row.edit.changes[0].factor: row.verdict for row in rows if row.edit and row.image is not None}
    assert verdicts["background"].accepted
    assert (verdicts["weather"].accepted, verdicts["weather"].check) == (False, "direction")
    strict = lance_of(services, thresholds={"caption": {"default": 2.0}})
    assert {row.verdict.check for row in strict if row.edit and row.image} == {"caption"}


def test_every_image_of_the_sweep_gets_a_new_caption_if_the_job_asks_for_it(services: CaptioningServices) -> None:
    rows = lance_of(services, recaption=True)
    tried = [attempt for row in rows for attempt in row.lineage.get("sweep", [])]
    assert tried
    assert all(attempt["scores"]["recaption"] == 1.0 for attempt in tried)
    services.new_caption = "A red bus on a street."
    lost = [row for row in lance_of(services, recaption=True) if row.image is not None]
    assert {(row.verdict.check, row.scores["recaption"]) for row in lost if row.arm == "edit"} == {("recaption", 0.0)}
    assert all(row.verdict.accepted for row in lost if row.arm == "null")
    assert all("recaption" not in row.scores for row in lance_of(services))


def test_nearer_to_the_new_caption_is_asked_for_without_any_threshold(services: CaptioningServices) -> None:
    for row in lance_of(services, thresholds={}):
        if row.edit and row.image is not None:
            assert row.verdict.accepted == (row.scores["caption"] >= 0)


def test_a_caption_that_does_not_name_the_class_is_begun_with_it(services: CaptioningServices) -> None:
    services.source_caption = "Something on a street. It is a sunny day."
    (row, *_) = lance_of(services, factors=["weather"])
    assert row.caption == f"A picture of a car. {services.source_caption}"
    (row, *_) = lance_of(services, factors=["weather"], label_aware=False)
    assert row.caption == services.source_caption
    (row, *_) = lance_of(services, factors=["weather"], label_aware=False, caption_prompt="a photo of")
    assert row.caption == "A photo of something on a street. It is a sunny day."
    (row, *_) = lance_of(services, factors=["weather"], label_aware=False, caption_domain="a photo of")
    assert row.caption == "A photo of something on a street. It is a sunny day.", "without a prompt for the captioner"
    (row, *_) = lance_of(services, factors=["weather"], caption_domain="a photo of")
    assert row.caption == f"A photo of a car. {services.source_caption}"


@ON_SQLITE
def test_a_job_gives_rows_that_are_counted(sessions: Sessions, tmp_path: Path) -> None:
    small = LanceServices()
    with serve(small) as url:
        site = Site(sessions, DirectoryStore(tmp_path / "objects"), small, url)
        parameters = LanceParameters(steps=4, self_fractions=(0.4, 0.7)).model_dump(mode="json")
        site.add_job(images=2, methods=[{"name": "lance", "parameters": parameters}])
        site.worker().step()
        assert site.state() == "done"
        assert small.calls["generate"] == 2 * len(LANCE_FACTORS)
        with sessions() as session:
            rows = load_rows(session, "job")
            values = set(
                session.scalars(
                    select(Counterfactual.to_value).where(
                        Counterfactual.arm == "edit", Counterfactual.image_digest.is_not(None)
                    )
                )
            )
        assert values <= {"beach", "rainy", "park"}
        assert ("m1", "lance") in rows.models
        for client in site.clients:
            client.close()


class NoWeather(LanceServices):
    """The language model finds no valid reply to questions about the weather."""

    def _generate(self, request: GenerateRequest) -> GenerateReply:
        if "Factor: weather" in request.messages[-1].content:
            self._called("generate")
            raise GenerationFailed("no valid reply in 2 attempts")
        return super()._generate(request)


def test_a_factor_without_a_valid_reply_is_refused_by_name_and_the_others_are_rendered() -> None:
    small = NoWeather()
    with open_clients(small, CaptioningServices) as clients:
        rows = lance_of(clients)
    (refused,) = [row for row in rows if row.verdict.check == "invalid reply"]
    assert refused.edit is not None
    assert [change.factor for change in refused.edit.changes] == ["weather"]
    assert (refused.image, refused.null_ordinal) == (None, None)
    assert "no valid reply" in refused.verdict.reason
    assert [exchange.get("requests") for exchange in refused.lineage["exchanges"]] == [2], (
        "the same fault is not asked on"
    )
    assert {row.edit.changes[0].factor for row in rows if row.edit and row.image is not None} == {"background"}
    assert small.calls["generate"] == len(LANCE_FACTORS) + 1


def test_effects_are_measured_against_a_paraphrase_under_the_fractions_that_won(services: CaptioningServices) -> None:
    rows = lance_of(services, reference="sham", self_fractions=[0.4, 0.7])
    sweep, arms = services.edits
    chosen = sorted({row.lineage["self_fraction"] for row in rows if row.arm == "edit" and row.image})
    paraphrase = CAPTION.replace("on a street", "on a road")
    assert [edit.prompt for edit in arms.edits] == [CAPTION, paraphrase]
    assert arms.self_fractions == chosen, "the losing fractions of the sweep cost no sham arm"
    assert (arms.guidance, arms.steps, arms.inversion) == (sweep.guidance, sweep.steps, sweep.inversion)
    shams = [row for row in rows if row.arm == "sham"]
    assert [row.lineage["self_fraction"] for row in shams] == chosen
    assert {row.edit.new_caption if row.edit else None for row in shams} == {paraphrase}
    by_ordinal = {row.ordinal: row for row in rows}
    for row in rows:
        if row.arm == "edit" and row.image is not None:
            sham = by_ordinal[row.sham_ordinal or 0]
            assert (sham.arm, sham.lineage["self_fraction"]) == ("sham", row.lineage["self_fraction"])
            assert (row.null_check, row.sham_check) == ("", "")


def test_an_arm_that_loses_the_class_fails_the_check_of_its_edits_and_not_the_edits(
    services: CaptioningServices,
) -> None:
    rows = lance_of(services, reference="sham", thresholds={"label": {"default": 1.1}})
    edits = [row for row in rows if row.arm == "edit" and row.image is not None]
    assert {(row.null_check, row.sham_check) for row in edits} == {("label", "label")}
    assert all(row.verdict.accepted for row in rows if row.arm != "edit")
