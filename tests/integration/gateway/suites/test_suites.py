"""Suites on both databases: what is copied, what runs without diffusion, what remains, and what a release is."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, func, select, update

from gateway.database.tables import (
    LOCAL_OWNER,
    Counterfactual,
    Image,
    Job,
    Prediction,
    RecordedCall,
    Report,
    SourceImage,
    Suite,
)
from gateway.jobs import jobs
from gateway.operations.housekeeping import Graces, run_housekeeping
from gateway.suites import suites
from gateway.suites.runs import results
from shared.problems import Conflict, InvalidInput, NotFound
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.suites import SuiteRequest
from tests.support.databases import ON_SQLITE
from tests.support.small_services import CLASSES
from tests.support.work_site import Site

AT_ONCE = Graces(0, 0)


@pytest.fixture
def site(site: Site) -> Site:
    """With a finished job of three images."""
    site.add_job(images=3)
    site.worker().step()
    return site


def release(name: str = "m1", revision: str = "1", classes: list[str] = CLASSES) -> ModelUnderTestInfo:
    return ModelUnderTestInfo(
        name=name, kind="classification", classes=classes, weights="none", revision=revision, licence="Apache-2.0"
    )


def freeze(site: Site, name: str = "weather", **request: object) -> str:
    with site.sessions.begin() as session:
        body = SuiteRequest.model_validate({"job": "job", "name": name, **request})
        return suites.create(session, LOCAL_OWNER, body)


def start(site: Site, suite: str, model: ModelUnderTestInfo | None = None) -> str:
    with site.sessions.begin() as session:
        return suites.start_run(session, LOCAL_OWNER, suite, model or release())


def predictions(site: Site, job: str, model: str) -> list[tuple[object, ...]]:
    """Predictions of a model by image."""
    c, p, s = Counterfactual, Prediction, SourceImage
    with site.sessions() as session:
        rows = session.execute(
            select(s.position, c.method, c.ordinal, p.predicted, p.probability, p.detail, p.flipped)
            .join(s, p.source_image_id == s.id)
            .join(c, p.counterfactual_id == c.id, isouter=True)
            .where(p.job_id == job, p.model == model)
        ).all()
    return sorted((tuple(row) for row in rows), key=repr)


def test_a_run_only_predicts_and_repeats_the_predictions_of_the_job(site: Site) -> None:
    before = predictions(site, "job", "m1")
    calls = {name: site.small.calls[name] for name in ("caption", "generate", "render", "edit", "structure")}
    with site.sessions.begin() as session:
        session.execute(delete(RecordedCall))
        session.execute(delete(Job).where(Job.id == "elsewhere"))
    suite = freeze(site)
    run = start(site, suite)
    site.worker().step()
    assert site.state(run) == "done"
    assert predictions(site, run, "m1") == before
    assert {name: site.small.calls[name] for name in calls} == calls, "nothing is made again"
    with site.sessions() as session:
        view = suites.show(session, LOCAL_OWNER, "weather")
        frozen = session.scalars(select(Counterfactual).where(Counterfactual.job_id == suite)).all()
        assert session.get(Report, run) is not None
    assert (view.id, view.sources, view.counterfactuals, view.null_arms) == (suite, 3, 6, len(frozen) - 6)
    assert [(run_view.id, run_view.model, run_view.revision, run_view.state) for run_view in view.runs] == [
        (run, "m1", "1", "done")
    ]
    assert {row.lineage != {} for row in frozen} == {True}


@pytest.mark.slow
def test_it_outlives_its_job_and_housekeeping_and_goes_with_its_deletion(site: Site) -> None:
    suite = freeze(site)
    with site.sessions.begin() as session:
        report = jobs.remove(session, LOCAL_OWNER, "job")
    assert report is not None
    site.store.delete(report)
    run_housekeeping(site.sessions, site.store, AT_ONCE)
    with site.sessions() as session:
        digests = set(session.scalars(select(Counterfactual.image_digest).where(Counterfactual.job_id == suite)))
        digests |= set(session.scalars(select(SourceImage.digest).where(SourceImage.job_id == suite)))
        assert digests <= set(session.scalars(select(Image.digest)))
    run = start(site, suite)
    site.worker().step()
    assert site.state(run) == "done"
    with site.sessions.begin() as session:
        keys = suites.remove(session, LOCAL_OWNER, "weather")
    assert [key.rpartition("/")[0] for key in keys] == [f"reports/{run}"]
    for key in keys:
        site.store.delete(key)
    run_housekeeping(site.sessions, site.store, AT_ONCE)
    assert list(site.store.iterate()) == []
    with site.sessions() as session:
        for table in (Suite, Job, SourceImage, Counterfactual, Prediction):
            assert session.scalar(select(func.count()).select_from(table)) == 0, table


@pytest.mark.slow
def test_the_same_release_is_not_tested_twice_and_new_weights_are(site: Site) -> None:
    suite = freeze(site)
    run = start(site, suite)
    site.worker().step()
    calls = site.small.calls["predict"]
    assert start(site, suite) == run
    site.worker().step()
    assert site.small.calls["predict"] == calls
    newer = start(site, suite, release(revision="2"))
    assert newer != run
    site.worker().step()
    with site.sessions.begin() as session:
        compared = results(session, LOCAL_OWNER, suite, newer, run, 5)
        assert (compared.baseline_revision, compared.revision, compared.left_out) == ("1", "2", 0)
        assert {cell.difference for cell in compared.cells} == {0.0}, (
            "the small services say the same under any revision"
        )
        assert compared.breaches == []
        session.execute(update(SourceImage).where(SourceImage.job_id == run).values(state="failed"))
        session.execute(delete(Prediction).where(Prediction.job_id == run))
    assert start(site, suite) == run, "what failed is taken up again"
    assert site.state(run) == "running"
    site.worker().step()
    assert site.state(run) == "done"


@pytest.mark.slow
def test_filters_choose_and_only_what_was_accepted_is_frozen(site: Site) -> None:
    with site.sessions.begin() as session:
        edits = select(Counterfactual).where(Counterfactual.arm == "edit").order_by(Counterfactual.position)
        first = session.scalars(edits).first()
        assert first is not None
        first.accepted, first.check = False, "label"
        value, refused = str(first.to_value), first.id
    freeze(site, "all")
    freeze(site, "some", filters={"value": value, "class": "car"})
    with site.sessions() as session:
        everything, some = (suites.show(session, LOCAL_OWNER, name) for name in ("all", "some"))
        values = set(session.scalars(select(Counterfactual.to_value).where(Counterfactual.job_id == some.id)))
        assert everything.counterfactuals == 5
        assert values - {None} == {value}
        assert some.sources == some.counterfactuals == 2
        ids = session.scalars(select(Counterfactual.id).where(Counterfactual.job_id == everything.id)).all()
        assert not [name for name in ids if name.endswith(refused)]
    with pytest.raises(InvalidInput, match="nothing to freeze"):
        freeze(site, "none", filters={"value": "lava"})


@pytest.mark.slow
def test_suites_are_their_owners_and_hidden_among_jobs(site: Site) -> None:
    suite = freeze(site)
    run = start(site, suite)
    with site.sessions() as session:
        assert [job.id for job in jobs.listing(session, LOCAL_OWNER, None, 10).jobs] == ["job"]
        assert jobs.find(session, LOCAL_OWNER, run).id == run
        for hidden in (lambda: jobs.find(session, LOCAL_OWNER, suite), lambda: suites.find(session, "ann", suite)):
            with pytest.raises(NotFound):
                hidden()
        assert suites.listing(session, "ann", None, 10).suites == []
        with pytest.raises(NotFound):
            suites.find_run(session, LOCAL_OWNER, suite, "job")
        with pytest.raises(Conflict, match="running"):
            results(session, LOCAL_OWNER, suite, run, None, 5)
    with pytest.raises(Conflict, match="another name"):
        freeze(site)
    site.worker().step()
    with pytest.raises(InvalidInput, match="run of a suite"):
        freeze(site, "again", job=run)
    with pytest.raises(InvalidInput, match="does not know"):
        start(site, suite, release("m2", classes=["boat"]))


@pytest.mark.slow
@ON_SQLITE
def test_a_run_keeps_the_warning_that_its_images_are_outside_the_domain(site: Site) -> None:
    """The report of a forced job began with it, and the reports and gates of its suite's runs did not."""
    with site.sessions.begin() as session:
        session.get_one(Job, "job").spec = {"outside_domain_note": "far from drawn pictures"}
    run = start(site, suite := freeze(site))
    site.worker().step()
    with site.sessions() as session:
        assert session.get_one(Job, run).stored_spec.outside_domain_note == "far from drawn pictures"
        assert "far from drawn pictures" in results(session, LOCAL_OWNER, suite, run, None, 5.0).doubtful


@pytest.mark.slow
def test_outcomes_may_choose_what_is_frozen(site: Site) -> None:
    with site.sessions() as session:
        flips = select(Counterfactual.id).join(Prediction, Prediction.counterfactual_id == Counterfactual.id)
        chosen = flips.where(Prediction.model == "m1", Prediction.flipped.is_(True), Counterfactual.arm == "edit")
        classes = set(session.scalars(chosen))
    assert classes, "the small services flip some"
    suite = freeze(site, filters={"flipped": True, "model": "m1"})
    with site.sessions() as session:
        edits = select(Counterfactual.id).where(Counterfactual.job_id == suite, Counterfactual.arm == "edit")
        assert {name.partition("-")[2] for name in session.scalars(edits)} == classes
