"""The check `recaption` in jobs: verdicts with their caption, unchecked images, and the error rates."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from sqlalchemy import select

from contrafact.printing import findings
from gateway.database.tables import Counterfactual, Report, SourceImage
from gateway.jobs.choices import plan
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.media.images import decode
from shared.media.storage import image_key
from shared.problems import InvalidInput
from shared.profiles.profile import CheckCalibration, load_profile
from shared.schemas.effects import CheckErrors
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec
from shared.schemas.results import JobResults
from tests.support.databases import ON_SQLITE
from tests.support.small_services import CLASSES
from tests.support.work_site import Site

METHODS: list[dict[str, object]] = [
    {"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 2, "recaption": True}},
    {"name": "shifts", "parameters": {"steps": 2, "recaption": True}},
]


def sees_a_car(site: Site, digest: str | None) -> bool:
    """As the small services' captioner has it."""
    return bool(decode(site.store.get(image_key(str(digest))))[0, 0, 0] % 3)


@pytest.mark.slow
def test_images_whose_class_is_no_longer_named_are_rejected_and_null_arms_only_scored(site: Site) -> None:
    site.small.looks = True
    site.add_job(images=6, methods=METHODS)
    site.worker().step()
    assert site.state() == "done"
    with site.sessions() as session:
        rows = session.execute(
            select(Counterfactual, SourceImage.digest)
            .join(SourceImage, Counterfactual.source_image_id == SourceImage.id)
            .where(Counterfactual.image_digest.is_not(None))
        ).all()
        results = JobResults.model_validate(session.get_one(Report, "job").metrics)
    fates = set()
    for row, source in rows:
        before, after = sees_a_car(site, source), sees_a_car(site, row.image_digest)
        assert row.scores.get("recaption") == (float(after) if before else None)
        refused = before and not after and row.arm == "edit"
        assert (row.accepted, row.check) == (not refused, "recaption" if refused else "")
        if refused:
            assert row.reason.endswith("“A red boat on a street. It is a sunny day.”"), "the new caption"
        fates.add((row.arm, before, after))
    assert {("edit", True, True), ("edit", True, False), ("null", True, False), ("edit", False, True)} <= fates
    for funnel in results.funnels:
        edits = [source for row, source in rows if row.arm == "edit" and row.method == funnel.method]
        assert funnel.recaption_unchecked == sum(not sees_a_car(site, source) for source in edits) > 0
        assert [refusal.check for refusal in funnel.refused_by_image] == ["recaption"]
    silent = sum(funnel.recaption_unchecked or 0 for funnel in results.funnels)
    page = site.report()
    assert f"</b> for {results.funnels[0].recaption_unchecked} of" in page
    out = io.StringIO()
    Console(width=400, file=out).print(findings(results))
    assert f"{silent} rendered images" in out.getvalue()


@pytest.mark.slow
@ON_SQLITE
def test_new_captions_are_off_by_default_and_cost_one_request_per_message(site: Site) -> None:
    site.add_job("plain", images=2)
    site.worker().step()
    assert site.small.calls["caption"] == 2
    with site.sessions() as session:
        assert measure(load_rows(session, "plain")).funnels[0].recaption_unchecked is None
    site.add_job("asked", images=2, methods=METHODS[:1])
    site.worker().step()
    assert site.small.calls["caption"] == 2 + 2, "the source's own captions are found where they were recorded"


@pytest.mark.slow
@ON_SQLITE
def test_with_a_threshold_of_0_the_score_is_stored_and_rejects_nothing(site: Site) -> None:
    site.small.looks = True
    parameters = {**METHODS[0]["parameters"], "thresholds": {"recaption": {"default": 0.0}}}  # type: ignore[dict-item]
    site.add_job(images=6, methods=[{"name": "dillema", "parameters": parameters}])
    site.worker().step()
    with site.sessions() as session:
        rows = list(session.scalars(select(Counterfactual).where(Counterfactual.image_digest.is_not(None))))
    assert {row.scores.get("recaption") for row in rows} == {None, 0.0, 1.0}
    assert all(row.accepted for row in rows)


def test_errors_of_the_checks_are_not_those_with_new_captions() -> None:
    classifier = ModelUnderTestInfo(
        name="m", kind="classification", classes=CLASSES, weights="", revision="", licence=""
    )
    errors = {"dillema": {"default": CheckErrors(valid=1, valid_accepted=1, invalid=1, invalid_accepted=0)}}
    calibration = {"photos": CheckCalibration(judged_by="people", methods=errors)}
    profile = load_profile("tiny").model_copy(update={"calibration": calibration})
    spec = {"task": "name it", "models": ["m"], "calibration": "photos"}
    for name in ("recaption", "thresholds"):
        value: object = True if name == "recaption" else {}
        job_spec = JobSpec.model_validate(spec | {"methods": [{"name": "dillema", "parameters": {name: value}}]})
        with pytest.raises(InvalidInput, match=f"leave out .*{name}"):
            plan(job_spec, profile, [classifier])
