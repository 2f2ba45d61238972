"""The calibration sample over HTTP and on its page: random, blind, and the errors that follow from it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from contrafact.cli import app
from gateway.database.tables import Counterfactual, JobService
from gateway.report.build import build_report
from shared.profiles.profile import load_profile
from shared.schemas.calibration import JobCalibration
from shared.seeds import derive_seed
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import Gateway, key_of, serve_gateway
from tests.support.service_infos import evaluator_with_scorer
from tests.support.small_profile import write_profile

PAGE = "/jobs/drawn/review?sample=calibration"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A finished job `drawn` of 36 source images; a random third of its edits is rejected, the others accepted."""
    with serve_gateway(tmp_path_factory.mktemp("calibration")) as served:
        add_drawn_job(served.context.sessions, served.context.store, per_class=12)
        with served.context.sessions.begin() as session:
            for edit in session.query(Counterfactual).filter_by(arm="edit"):
                random = np.random.default_rng(derive_seed("test", edit.id))
                accepted = bool(random.random() < 2 / 3)
                edit.accepted, edit.check = accepted, "" if accepted else "structure"
                edit.scores = {"structure": float(random.normal(1.0 if accepted else -1.0)), "label_margin": 0.5}
                edit.null_check = ""
        build_report(served.context.sessions, served.context.store, "drawn")
        yield served


def page(gateway: Gateway, path: str = PAGE) -> str:
    reply = gateway.client.get(path)
    assert reply.status_code == 200, reply.text
    return html.unescape(reply.text)


def calibration(gateway: Gateway) -> JobCalibration:
    reply = gateway.client.get("/jobs/drawn/calibration")
    assert reply.status_code == 200, reply.text
    return JobCalibration.model_validate(reply.json())


def edit_on(text: str) -> str:
    form = re.search(r'<form id="review" action="/jobs/\w+/reviews/(\w+)" data-next="([^"]+)"', text)
    assert form
    assert form[2] == PAGE, "the next pair is of the sample, too"
    return form[1]


def rendered(gateway: Gateway) -> dict[str, bool]:
    rows = gateway.client.get("/jobs/drawn/results?limit=200").json()["counterfactuals"]
    return {row["id"]: row["verdict"]["accepted"] for row in rows if row["image"]}


@pytest.mark.slow
def test_the_sample_is_every_rendered_edit_in_an_order_that_no_verdict_decides(gateway: Gateway) -> None:
    before = calibration(gateway).methods[0]
    assert (before.answered, before.rendered) == (0, len(rendered(gateway)))
    assert before.more >= 20
    assert before.errors[0].errors is None
    verdicts = rendered(gateway)
    order = []
    for number in range(60):
        text = page(gateway)
        assert f"{number} of {len(verdicts)} in random order" in text
        for hidden in ("accepted", "rejected", "night-bus", "flipped", "predicted", "structure"):
            assert hidden not in text.partition("<main")[2]
        order.append(edit_on(text))
        # A reviewer who finds 80 % of accepted images valid, and 30 % of rejected ones.
        random = np.random.default_rng(derive_seed("reviewer", order[-1]))
        valid = random.random() < (0.8 if verdicts[order[-1]] else 0.3)
        review = {"verdict": "unsure" if number == 7 else "valid" if valid else "invalid"}
        assert gateway.client.put(f"/jobs/drawn/reviews/{order[-1]}", json=review).status_code == 200
    assert len(set(order)) == 60
    assert order == sorted(verdicts)[:60], "ids are digests, so their order is random"
    assert 28 <= sum(verdicts[name] for name in order) <= 52
    assert f"counterfactual={order[-1]}" in page(gateway)


@pytest.mark.slow
def test_its_errors_are_counted_by_method_and_factor(gateway: Gateway) -> None:
    (method,) = calibration(gateway).methods
    assert (method.method, method.answered, method.undecided) == ("dillema", 60, 1)
    reviews = gateway.client.get("/jobs/drawn/reviews?limit=200").json()["reviews"]
    verdicts = rendered(gateway)
    decided = {view["counterfactual"]: view["verdict"] for view in reviews if view["verdict"] != "unsure"}
    invalid = [name for name, verdict in decided.items() if verdict == "invalid"]
    pooled = method.errors[0]
    assert pooled.accepted_if_invalid.n == len(invalid)
    assert pooled.accepted_if_invalid.count == sum(verdicts[name] for name in invalid)
    assert pooled.rejected_if_valid.n == len(decided) - len(invalid)
    assert pooled.errors is not None
    assert {rates.factor for rates in method.errors} == {None, "weather", "background"}
    assert sum(rates.images for rates in method.errors[1:]) == pooled.images == 59
    assert method.more > 0
    assert 0 < method.half_width < 0.3
    assert method.fitted is not None
    assert set(method.fitted.thresholds) == {"structure"}
    assert method.separation["structure"] > 0.5
    assert set(method.checks_off) == {"structure", "caption", "label", "fit"}, "the drawn job has no thresholds"


@pytest.mark.slow
def test_a_review_beyond_the_first_gap_waits_until_the_sample_reaches_it(gateway: Gateway) -> None:
    names = sorted(rendered(gateway))
    assert gateway.client.put(f"/jobs/drawn/reviews/{names[61]}", json={"verdict": "valid"}).status_code == 200
    assert calibration(gateway).methods[0].answered == 60
    assert gateway.client.put(f"/jobs/drawn/reviews/{names[60]}", json={"verdict": "valid"}).status_code == 200
    assert calibration(gateway).methods[0].answered == 62


def test_the_page_ends_with_the_sample_and_refuses_what_it_does_not_know(gateway: Gateway) -> None:
    add_drawn_job(gateway.context.sessions, gateway.context.store, "small", per_class=1)
    for row in gateway.client.get("/jobs/small/results?limit=200").json()["counterfactuals"]:
        if row["image"]:
            gateway.client.put(f"/jobs/small/reviews/{row['id']}", json={"verdict": "invalid"})
    assert "Nothing left to review" in page(gateway, "/jobs/small/review?sample=calibration")
    assert "Nothing to review yet" not in page(gateway, "/jobs/small/review?sample=calibration&method=lance")
    assert gateway.client.get("/jobs/drawn/review?sample=other").status_code == 422
    assert gateway.client.get("/jobs/none/calibration").status_code == 404
    assert 'review?sample=calibration">' in page(gateway, "/jobs/drawn/view")


@pytest.mark.slow
def test_the_command_line_prints_the_errors_and_writes_a_profile(gateway: Gateway, tmp_path: Path) -> None:
    def contrafact(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments), env={"CONTRAFACT_URL": str(gateway.client.base_url)})
        assert result.exit_code == code, result.output
        return result

    profile = write_profile(tmp_path)
    before = profile.read_text(encoding="utf-8")
    with gateway.context.sessions.begin() as session:
        session.merge(
            JobService(job_id="drawn", service="evaluator_service", revision="1", info=evaluator_with_scorer("a" * 40))
        )
    shown = contrafact("calibrate", "drawn")
    assert "weather" in shown.stdout
    assert f"of {calibration(gateway).methods[0].rendered} reviewed" in shown.stderr
    assert "/jobs/drawn/review?sample=calibration" in shown.stderr
    as_json = contrafact("calibrate", "drawn", "--json").stdout
    assert JobCalibration.model_validate_json(as_json) == calibration(gateway)
    assert "--write" in contrafact("calibrate", "drawn", "--profile", str(profile)).stderr
    assert "--profile" in contrafact("calibrate", "drawn", "--write", code=2).stderr
    assert profile.read_text(encoding="utf-8") == before
    arguments = ("calibrate", "drawn", "--profile", str(profile), "--write", "--data", "streets")
    assert "--calibration streets" in contrafact(*arguments).stderr
    measured = load_profile(str(profile)).calibration["streets"]
    (method,) = calibration(gateway).methods
    assert (measured.scorer, measured.judged) == ("a" * 40, method.answered - method.undecided)
    assert measured.methods == {"dillema": {rates.factor: rates.errors for rates in method.errors if rates.factor}}
    assert measured.thresholds == {"dillema": {}}
    contrafact(*arguments, "--fitted")
    assert set(load_profile(str(profile)).calibration["streets"].thresholds["dillema"]) == {"structure"}


def test_too_few_reviews_write_nothing_and_say_how_many_more(gateway: Gateway, tmp_path: Path) -> None:
    add_drawn_job(gateway.context.sessions, gateway.context.store, "unreviewed", per_class=4)
    with gateway.context.sessions.begin() as session:
        session.add(
            JobService(
                job_id="unreviewed", service="evaluator_service", revision="1", info=evaluator_with_scorer("a" * 40)
            )
        )
    profile = write_profile(tmp_path)
    before = profile.read_text(encoding="utf-8")
    arguments = ["calibrate", "unreviewed", "--profile", str(profile), "--write"]
    result = CliRunner().invoke(app, arguments, env={"CONTRAFACT_URL": str(gateway.client.base_url)})
    assert result.exit_code == 2
    assert "Review about 20 more" in result.stderr
    assert profile.read_text(encoding="utf-8") == before


def test_two_reviewers_share_one_sample(tmp_path: Path) -> None:
    with serve_gateway(tmp_path, authentication=True) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=2)
        ann, ben = key_of(gateway, "local"), key_of(gateway, "local")
        rows = gateway.client.get("/jobs/drawn/results?limit=200", headers=ann).json()["counterfactuals"]
        first, second = sorted(row["id"] for row in rows if row["image"])[:2]
        assert edit_on(gateway.client.get(PAGE, headers=ann).text) == first
        assert gateway.client.put(f"/jobs/drawn/reviews/{first}", json={"verdict": "valid"}, headers=ann).is_success
        assert edit_on(gateway.client.get(PAGE, headers=ben).text) == second


@pytest.mark.slow
def test_enough_reviews_fit_a_model_of_validity_that_the_profile_takes(gateway: Gateway, tmp_path: Path) -> None:
    verdicts = rendered(gateway)
    for name in sorted(verdicts)[60:]:
        random = np.random.default_rng(derive_seed("reviewer", name))
        valid = random.random() < (0.8 if verdicts[name] else 0.3)
        gateway.client.put(f"/jobs/drawn/reviews/{name}", json={"verdict": "valid" if valid else "invalid"})
    (method,) = calibration(gateway).methods
    assert method.validity is not None
    assert set(method.validity.model.signals) == {"structure"}
    assert method.validity.thresholds.keys() == {"label", "validity"}
    assert method.validity.model.signals["structure"].weight > 0
    assert method.validity.model.auroc_of_scores.value == pytest.approx(method.separation["structure"], abs=0.1)
    profile = write_profile(tmp_path)
    with gateway.context.sessions.begin() as session:
        session.merge(
            JobService(job_id="drawn", service="evaluator_service", revision="1", info=evaluator_with_scorer("a" * 40))
        )
    arguments = ["calibrate", "drawn", "--profile", str(profile), "--write", "--data", "streets", "--validity"]
    result = CliRunner().invoke(app, arguments, env={"CONTRAFACT_URL": str(gateway.client.base_url)})
    assert result.exit_code == 0, result.output
    written = load_profile(str(profile)).calibration["streets"]
    assert written.validity_model == {"dillema": method.validity.model}
    assert written.thresholds == {"dillema": method.validity.thresholds}
    assert written.methods["dillema"] == {
        rates.factor: rates.errors for rates in method.validity.errors if rates.factor
    }
    together = CliRunner().invoke(app, [*arguments, "--fitted"], env={"CONTRAFACT_URL": str(gateway.client.base_url)})
    assert together.exit_code == 2
