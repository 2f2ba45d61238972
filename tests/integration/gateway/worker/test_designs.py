"""Jobs of balanced and adaptive design: which source images get which values, and what the report says of it."""

from __future__ import annotations

import pytest
from sqlalchemy import delete, select

from gateway.analysis.limits import LEAST_SOURCES
from gateway.context import Context
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Job, JobRound, Prediction, Report, SourceImage
from gateway.intake.sources import KeptImage, SourceFile
from gateway.jobs import jobs
from gateway.jobs.choices import Plan
from gateway.jobs.more_models import add_to_job
from gateway.jobs.rounds import FIRST_IMAGES, first_images, first_round
from gateway.methods.proposed_values import ProposedValues
from gateway.model_services.clients import ModelServices
from gateway.queue import leases
from gateway.results.rounds import rounds_of
from gateway.worker.worker import Worker
from shared.profiles.profile import load_profile
from shared.schemas.designs import ChosenValue, RoundPlan
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.service import SERVICES
from tests.support.rows import let_time_pass
from tests.support.small_services import CLASSES
from tests.support.work_site import QUICK, Site, wait_for, work_until

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
VALUES = ["weather=fog", "weather=rain", "weather=night"]  # the small services have words for the first two

MODEL = ModelUnderTestInfo(
    name="m1", kind="classification", classes=CLASSES, weights="none", revision="1", licence="Apache-2.0"
)


def add_balanced_job(site: Site, images: int) -> None:
    parameters = {"values": [{"factor": "weather", "value": text.partition("=")[2]} for text in VALUES], "steps": 2}
    site.add_job(images=images, models=("m1",), methods=[{"name": "dillema", "parameters": parameters}])
    with site.sessions.begin() as session:
        session.get_one(Job, "job").spec = {"design": "balanced", "budget": 100}


@pytest.mark.slow
@ON_SQLITE
def test_cells_fill_evenly_and_the_report_says_what_was_spent_where(site: Site) -> None:
    add_balanced_job(site, images=4)
    site.worker().step()
    design = site.metrics().design
    assert design is not None
    assert (design.kind, design.budget, [chosen.value for chosen in design.values]) == (
        "balanced",
        100,
        ["fog", "rain", "night"],
    )
    spent = {cell.value: (cell.label, cell.proposed, cell.rendered, cell.counted) for cell in design.cells}
    assert spent == {"fog": ("car", 4, 4, 4), "rain": ("car", 4, 4, 4), "night": ("car", 4, 0, 0)}
    assert design.rendered == 4 * 2 * 2
    assert all(f">car, weather {value}</th>" in site.report() for value in spent)


@ON_SQLITE
def test_a_free_job_has_no_values(site: Site) -> None:
    site.add_job(images=1, models=("m1",))
    site.worker().step()
    design = site.metrics().design
    assert design is not None
    assert (design.kind, design.values, design.cells) == ("free", [], [])
    assert 'id="design"' in site.report()
    assert ">car, weather fog</th>" not in site.report()


@ON_SQLITE
@pytest.mark.slow
def test_values_that_the_first_images_do_not_show_give_their_place_to_others(site: Site) -> None:
    """The small services have words for fog and rain alone."""
    values = [{"factor": "weather", "value": value} for value in ("night", "fog", "rain")]
    parameters = {"values": values[:2], "steps": 2}
    images = FIRST_IMAGES + LEAST_SOURCES
    methods: list[dict[str, object]] = [
        {"name": "dillema", "parameters": parameters},
        {"name": "corruptions", "parameters": {}},
    ]
    site.add_job(images=images, models=("m1",), methods=methods)
    with site.sessions.begin() as session:
        row = session.get_one(Job, "job")
        row.spec = {"design": "balanced", "chosen_by": "profile"}
        sources = [SourceFile(f"{n}.png", "car", KeptImage("0" * 64, "0" * 64, 8, 8, 1)) for n in range(images)]
        proposal = ProposedValues(tuple(ChosenValue.model_validate(value) for value in values), "profile", {})
        first = first_images(Plan(row.methods, [MODEL], list(row.classes), proposal=proposal), sources, row.seed)
        session.add(JobRound(job_id="job", number=0, plan=first))
    work_until_done(site)
    design = site.metrics().design
    assert design is not None
    assert [(dropped.chosen.value, dropped.accepted) for dropped in design.dropped] == [("night", 0)]
    proposed = {cell.value: cell.proposed for cell in design.cells if cell.method == "dillema"}
    assert proposed == {"night": FIRST_IMAGES, "fog": images, "rain": LEAST_SOURCES}
    corrupted = {cell.proposed for cell in design.cells if cell.method == "corruptions"}
    assert corrupted == {images}
    assert "did not get it" in site.report()
    tested = next(figures for figures in site.metrics().results if figures.method == "dillema")
    assert {effect.cell.value for effect in tested.cells if effect.cell.direction == "from"} == {"sunny"}


PARAMETERS = {"values": ["weather=fog", "weather=rain"], "steps": 2}


def add_adaptive_job(
    site: Site, job: str = "job", images: int = 20, budget: int = 48, *, same_seed: bool = False
) -> None:
    """Cars whose model gets one of the values wrong, as the small services have it."""
    parameters = {**PARAMETERS, "same_seed": same_seed}
    site.add_job(job, images=images, models=("m1",), methods=[{"name": "dillema", "parameters": parameters}])
    with site.sessions.begin() as session:
        row = session.get_one(Job, job)
        row.spec = {"design": "adaptive", "budget": budget}
        sources = [SourceFile(f"{n}.png", "car", KeptImage("0" * 64, "0" * 64, 8, 8, 1)) for n in range(images)]
        plan = Plan(row.methods, [MODEL], list(row.classes))
        session.add(JobRound(job_id=job, number=0, plan=first_round(plan, budget, sources, row.seed)))


def rounds_of_job(site: Site, job: str = "job") -> list[RoundPlan]:
    with site.sessions() as session:
        return rounds_of(session, job)


def work_until_done(site: Site, job: str = "job") -> None:
    worker = site.worker()
    wait_for(lambda: worker.step() or site.state(job) == "done")  # type: ignore[func-returns-value]


@pytest.mark.slow
@ON_SQLITE
@pytest.mark.parametrize("grouped", [False, True])
def test_rounds_follow_each_other_within_the_budget(site: Site, grouped: bool) -> None:
    add_adaptive_job(site)
    with site.sessions.begin() as session:
        for number, image in enumerate(site.images() if grouped else ()):  # one image of each, as such a job takes
            session.merge(image).group_name = f"video {number}"
    work_until_done(site)
    rounds = rounds_of_job(site)
    assert [plan.number for plan in rounds] == list(range(len(rounds)))
    assert len(rounds) > 1
    for value in ("fog", "rain"):
        positions = [
            position
            for plan in rounds
            for place in plan.places
            if place.chosen.value == value
            for position in place.images
        ]
        assert len(positions) == len(set(positions))
    design = site.metrics().design
    assert design is not None
    assert design.rendered <= 48
    assert {cell.value: (cell.screening or 0) + (cell.confirming or 0) for cell in design.cells} == {
        cell.value: cell.proposed for cell in design.cells
    }
    screening = {cell.screening for cell in design.cells}
    assert screening == {4}
    counted = {cell.value: cell.counted for cell in design.cells}
    tested = [cell for result in site.metrics().results for cell in result.cells if cell.p_value is not None]
    assert all((cell.cell.direction, cell.sources) == ("to", counted[cell.cell.value]) for cell in tested)
    assert {image.state for image in site.images()} == {"done"}


@pytest.mark.slow
@ON_SQLITE
def test_shared_null_arms_are_counted_as_rendered(site: Site) -> None:
    """Fog and rain of one image share one null arm, so more than half of the renderings are edits."""
    add_adaptive_job(site, same_seed=True)
    work_until_done(site)
    design = site.metrics().design
    assert design is not None
    assert design.rendered <= 48
    assert 2 * sum(cell.rendered for cell in design.cells) > design.rendered


@pytest.mark.slow
@ON_SQLITE
def test_the_plan_does_not_depend_on_arrival_or_on_killed_workers(site: Site) -> None:
    add_adaptive_job(site)
    work_until_done(site)
    expected, results = rounds_of_job(site), site.results()
    add_adaptive_job(site, "again")
    with site.sessions.begin() as session:  # leased by a worker that dies
        for turn, image in enumerate(reversed(site.images("again"))):
            session.merge(image).turn = turn
        for _ in range(3):
            assert leases.claim(session, 60)
    let_time_pass(site.sessions, 120)
    with site.sessions.begin() as session:
        leases.sweep(session, 20)
    work_until_done(site, "again")
    assert rounds_of_job(site, "again") == expected
    assert site.results("again") == results


@pytest.mark.slow
@ON_SQLITE
def test_a_report_made_again_starts_no_round(site: Site) -> None:
    add_adaptive_job(site)
    work_until_done(site)
    rounds = rounds_of_job(site)
    with site.sessions.begin() as session:
        jobs.rebuild_report(session, LOCAL_OWNER, "job")
    work_until_done(site)
    assert rounds_of_job(site) == rounds


@pytest.mark.slow
@ON_SQLITE
def test_an_image_that_failed_is_repeated_with_the_values_of_its_round(site: Site) -> None:
    add_adaptive_job(site)
    work_until_done(site)
    first = rounds_of_job(site)[0]
    position = next(p for p in first.positions() if not any(p in plan.positions() for plan in rounds_of_job(site)[1:]))
    with site.sessions.begin() as session:  # as if it had failed in the first round
        source = session.get_one(SourceImage, f"job-{position}")
        source.state, source.generated = "failed", False
        for table in (Counterfactual, Prediction):
            session.execute(delete(table).where(table.source_image_id == source.id))
        jobs.retry(session, LOCAL_OWNER, "job")
    work_until_done(site)
    with site.sessions() as session:
        mine = select(Counterfactual).where(Counterfactual.source_image_id == source.id, Counterfactual.arm == "edit")
        values = [row.to_value for row in session.scalars(mine.order_by(Counterfactual.ordinal))]
    assert values == [chosen.value for chosen in first.values_of(position)]


ONE_BY_ONE = QUICK.model_copy(update={"images_per_message": 1})


def report_there(site: Site) -> bool:
    with site.sessions() as session:
        return session.get(Report, "job") is not None


@pytest.mark.slow
@ON_SQLITE
def test_a_model_that_is_added_to_a_job_cancelled_in_a_later_round_predicts_every_rendered_image(site: Site) -> None:
    add_adaptive_job(site)
    services = ModelServices(dict.fromkeys(SERVICES, site.url))
    site.clients.append(services)
    worker = Worker(ONE_BY_ONE, site.sessions, site.store, services, site.celery)
    site.workers.append(worker)

    def in_a_later_round() -> bool:
        worker.step()
        return len(rounds_of_job(site)) > 1 and any(image.state == "pending" for image in site.images())

    wait_for(in_a_later_round)
    with site.sessions.begin() as session:
        jobs.cancel(session, LOCAL_OWNER, "job")
    work_until(worker, lambda: report_there(site))
    assert "cancelled" in {image.state for image in site.images()}
    before = site.results()[0]
    context = Context(ONE_BY_ONE, load_profile("tiny"), site.sessions, site.store, services, lambda: None)
    add_to_job(context, LOCAL_OWNER, "job", ["m2"])
    work_until(worker, lambda: site.state() != "running")
    assert site.results()[0] == before, "nothing is rendered again"
    with site.sessions() as session:
        rendered = set(session.scalars(select(Counterfactual.id).where(Counterfactual.image_digest.is_not(None))))
        predicted = {
            model: set(session.scalars(select(Prediction.counterfactual_id).where(Prediction.model == model)))
            for model in ("m1", "m2")
        }
    assert predicted == {key: {*rendered, None} for key in ("m1", "m2")}
    assert site.state() == "done"
