"""From rows to figures, findings and the report, on a job with drawn images and random predictions."""

from __future__ import annotations

import base64
import html
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import expect
from sqlalchemy import delete, select, update

from gateway.database.events import add_event
from gateway.database.sessions import Sessions, migrate, open_engine, open_sessions
from gateway.database.tables import Counterfactual, Job, Prediction, Report, SourceImage
from gateway.methods import read_method
from gateway.report.build import build_report
from gateway.report.markdown import report_markdown
from gateway.report.page import report_data
from gateway.report.thumbnails import LONGEST_SIDE
from gateway.report.words import marked_caption
from gateway.results.job_rows import load_rows
from gateway.results.measure import measure
from shared.media.storage import DirectoryStore
from shared.schemas.metrics import OriginalsCheck
from shared.schemas.reports import JobReport, ReportPictures
from shared.schemas.results import Calibration, JobResults
from shared.words.wording import nothing_accepted, percent
from tests.support.browser import headless, needs_browser, open_page, overflow, violations
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.json_values import value_at
from tests.support.predictions import forget_truths

Measured = tuple[Sessions, DirectoryStore, JobResults, str]


def test_the_planted_weakness_is_the_first_finding_and_the_sound_model_has_none(measured: Measured) -> None:
    weak, sound = measured[2].results
    assert [(e.cell.label, e.cell.value, e.cell.direction) for e in weak.findings] == [("bus", "night", "to")]
    assert sound.findings == []
    assert weak.cells[0].sentence


def test_embedded_pictures_are_small_and_the_generated_ones_name_their_origin(measured: Measured) -> None:
    sessions, _, _, page = measured
    packets = []
    for encoded in set(re.findall(r'src="data:image/webp;base64,([^"]+)"', page)):
        with Image.open(io.BytesIO(base64.b64decode(encoded))) as image:
            assert max(image.size) <= LONGEST_SIDE
            packets.append(bytes(image.info.get("xmp", b"")))
    generated = [packet.decode() for packet in packets if packet]
    assert len(generated) < len(packets), "source images are nobody's work but the user's"
    assert all('contrafact:Job="drawn"' in packet and "trainedAlgorithmicMedia" in packet for packet in generated)
    named = {re.search(r'contrafact:Counterfactual="([^"]+)"', packet)[1] for packet in generated}  # type: ignore[index]
    with sessions() as session:
        assert named <= set(session.scalars(select(Counterfactual.id)))
    assert {re.search(r'contrafact:Arm="([^"]+)"', packet)[1] for packet in generated} == {"counterfactual", "null_arm"}  # type: ignore[index]


def test_figures_count_only_accepted_counterfactuals(measured: Measured) -> None:
    results = measured[2]
    (funnel,) = results.funnels
    refused = sum(c.count for c in [*funnel.refused_by_text, *funnel.refused_by_image])
    assert funnel.accepted.count == funnel.proposed - refused
    assert funnel.refused_by_text[0].check == "class words"
    assert funnel.rendered == funnel.proposed - funnel.refused_by_text[0].count
    for result in results.results:
        assert result.metrics is not None
        assert result.counterfactuals == funnel.accepted.count == result.metrics.error_rate.n
        assert result.left_out == 0
    assert results.costs[0].evaluations == 40 * funnel.rendered
    assert value_at(results.made.parameters, "dillema", "counterfactuals_per_image") == 4


@pytest.mark.slow
def test_originals_without_accepted_counterfactuals_are_among_all(measured: Measured) -> None:
    sessions, store, _, page = measured
    add_drawn_job(sessions, store, "partly", per_class=3)
    with sessions.begin() as session:
        first = (
            select(SourceImage.id).where(SourceImage.job_id == "partly", SourceImage.position == 0).scalar_subquery()
        )
        refused = update(Counterfactual).where(Counterfactual.source_image_id == first, Counterfactual.arm == "edit")
        session.execute(refused.values(accepted=False, check="label"))
    with sessions() as session:
        results = measure(load_rows(session, "partly"))
    for result in results.results:
        assert result.metrics is not None
        accuracy = result.metrics.accuracy[0]
        assert accuracy.all_originals is not None
        assert (accuracy.all_originals.n, accuracy.originals.n) == (9, 8)
        changes = result.metrics.probability_changes
        assert [change.factor for change in changes] == ["background", "weather"]
        assert sum(change.n for change in changes) == result.metrics.error_rate.n
        assert all(change.low <= change.value <= change.high for change in changes)
    assert "Mean |Δp| by factor" in page


def test_building_the_report_again_gives_the_same_page_and_the_stored_figures(measured: Measured) -> None:
    sessions, store, results, page = measured
    build_report(sessions, store, "drawn")
    assert store.get("reports/drawn/report.html").decode() == page
    with sessions() as session:
        row = session.get_one(Report, "drawn")
    assert row.object_key == "reports/drawn/report.html"
    assert JobResults.model_validate(row.metrics) == results


class _Page(HTMLParser):
    """What the page refers to, and what its images say to those who do not see them."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.without_alt = 0
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        self.addresses += [values[name] or "" for name in ("src", "href", "action") if name in values]
        self.without_alt += tag == "img" and not values.get("alt")
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass


def test_the_page_is_self_contained_well_formed_and_accessible(measured: Measured) -> None:
    page = _Page()
    page.feed(measured[3])
    assert page.open == []
    assert page.without_alt == 0
    assert page.addresses
    assert all(address.startswith(("data:image/webp;base64,", "#")) for address in page.addresses)
    assert set(re.findall(r'href="#([\w-]+)"', measured[3])) <= set(re.findall(r'id="([\w-]+)"', measured[3]))
    assert len(measured[3]) < 4_000_000


@pytest.mark.parametrize(
    "sentence",
    [
        "flipped: bus → truck",
        "uncalibrated",
        "Checks that are off",
        "structure, caption, label, fit",
        "<ins>",
        "Null arm of dillema: rendered with the same seed and control, caption unchanged.",
        "rejected by structure",
        "too few images",
        "numpy 2",
        "16 images",
    ],
)
def test_the_page_says(measured: Measured, sentence: str) -> None:
    assert sentence in measured[3]


def test_the_first_screen_says_what_was_tested_and_what_to_do(measured: Measured) -> None:
    first, _, below = measured[3].partition('<details class="folded"')
    assert all(words in first for words in ("night-bus", "sound", "48 source images"))
    assert 'id="next"' in first
    assert "contrafact confirm drawn --with shifts" in first
    assert "48 originals" in first
    assert 'id="untested"' in first
    assert first.count("at night is not recognised") == 1
    assert 'id="findings"' in below


def test_the_hero_is_of_the_strongest_weakness(measured: Measured) -> None:
    report = JobReport.model_validate_json(report_data(measured[3]) or b"")
    assert report.results == measured[2]
    assert report.pictures.hero == report.pictures.findings[0].counterfactuals[0]
    assert report.pictures.hero_model == "night-bus"


@pytest.mark.slow
def test_the_picture_of_a_finding_shows_its_edit_best(measured: Measured) -> None:
    sessions, store, _, page = measured
    (finding,) = (of for of in pictures(page).findings if of.model == "night-bus")
    last = finding.counterfactuals[-1]
    with sessions.begin() as session:
        row = session.get_one(Counterfactual, last)
        before, row.scores = row.scores, {**row.scores, "direction": 0.9}
    assert pictures(_report(sessions, store, "drawn")).hero == last
    with sessions.begin() as session:
        session.get_one(Counterfactual, last).scores = before
    assert _report(sessions, store, "drawn") == page


def pictures(page: str) -> ReportPictures:
    return JobReport.model_validate_json(report_data(page) or b"").pictures


@pytest.mark.slow
@needs_browser
def test_a_saved_report_is_short_explains_its_terms_and_copies_its_commands(measured: Measured, tmp_path: Path) -> None:
    saved = tmp_path / "report.html"
    saved.write_text(measured[3], encoding="utf-8")
    with headless() as browser, open_page(browser, saved.as_uri(), phone=True) as page:
        term = page.locator(".term", has_text="null arm").first
        expect(term.locator(".tip")).to_be_hidden()
        term.focus()
        expect(term.locator(".tip")).to_be_visible()
        page.locator(".copy").first.click()
        expect(page.locator(".copy").first).to_have_text("Copied")
        assert not violations(page)
        assert overflow(page) <= 0
        assert len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True))) <= 6
        page.evaluate("location.hash = 'effects'")
        expect(page.locator("#effects table").first).to_be_visible()


@pytest.mark.slow
def test_without_ground_truth_predictions_are_compared_with_those_of_the_originals(
    measured: Measured, tmp_path: Path
) -> None:
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "unlabelled", per_class=3)
    with sessions.begin() as session:
        session.execute(update(SourceImage).where(SourceImage.job_id == "unlabelled").values(ground_truth=None))
        forget_truths(session, "unlabelled")
    with sessions() as session:
        results = measure(load_rows(session, "unlabelled"))
    for result in results.results:
        assert result.relation == "metamorphic"
        assert result.metrics is not None
        assert result.metrics.accuracy[0].originals.value == 1.0
        assert result.metrics.error_rate == result.metrics.flips
    assert "Too few images" in _report(sessions, store, "unlabelled")


def test_a_job_with_nothing_in_it_still_reports(measured: Measured) -> None:
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "empty", per_class=0)
    page = _report(sessions, store, "empty")
    assert "No edit was proposed" in page
    assert "Too few images to tell" not in page, "more images would not help"


def test_a_job_whose_edits_were_all_refused_names_the_commonest_check(measured: Measured) -> None:
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "refused", per_class=1)
    with sessions.begin() as session:
        edits = update(Counterfactual).where(Counterfactual.job_id == "refused", Counterfactual.arm == "edit")
        session.execute(edits.values(accepted=False, check="match", reason="too far from the caption"))
    with sessions() as session:
        results = measure(load_rows(session, "refused"))
    sentence = nothing_accepted(results, "dillema")
    assert "match" in sentence
    assert sentence in _report(sessions, store, "refused")
    assert nothing_accepted(measured[2], "dillema") == ""


@pytest.mark.slow
def test_page_markdown_and_job_fold_what_the_test_set_was(tmp_path: Path) -> None:
    lines = ["3 images used, 3 with ground truth", "1 left out, no image: 'bus/notes.txt'", "labels from the folders"]
    with serve_drawn_job(tmp_path, per_class=1) as gateway:
        with gateway.context.sessions.begin() as session:
            add_event(session, "drawn", "job", {"state": "running", "test_set": [*lines]})
        build_report(gateway.context.sessions, gateway.context.store, "drawn")
        for path in ("report", "report?format=md", "view"):
            text = html.unescape(gateway.client.get(f"/jobs/drawn/{path}").text)
            folded = text.partition(f"<details><summary>Test set: {lines[0]}")[2].partition("</details>")[0]
            assert lines[2] in folded
            assert "1 left out, no image" in folded


def test_a_model_added_to_a_job_that_was_refused_before_rendering_is_told_so(measured: Measured) -> None:
    """It was told that no edit was proposed."""
    results = measured[2]
    (funnel,) = results.funnels
    nothing = funnel.model_copy(update={"proposed": 0, "accepted": funnel.accepted.model_copy(update={"count": 0})})
    unsound, added = results.results
    unsound = unsound.model_copy(update={"originals": OriginalsCheck(standing="unsound")})
    refused = results.model_copy(update={"funnels": [nothing], "results": [unsound, added]})
    sentence = nothing_accepted(refused, "dillema")
    assert "Nothing was rendered, because no model under test was right on the originals." in sentence
    assert sentence.endswith(f"Submit the images again to test `{added.model}`.")


@pytest.mark.slow
def test_edits_whose_label_can_have_any_rank_are_counted_as_unchecked(measured: Measured) -> None:
    """A scorer that ranks the truth last in the source refuses no image by its rank."""
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "unranked", per_class=1)
    with sessions.begin() as session:
        job = session.get_one(Job, "unranked")
        job.methods = [read_method("dillema", {"thresholds": {"label": {"default": 0.0}}})]
        rows = session.scalars(select(Counterfactual).where(Counterfactual.job_id == job.id)).all()
        last = [row for row in rows if row.image_digest][::2]
        for row in last:
            row.scores = {**row.scores, "label_rank_limit": float(len(job.classes))}
        edits = sum(row.arm == "edit" for row in last)
    page = _report(sessions, store, "unranked")
    assert edits
    assert f"<b>the label was not checked</b> in {edits} of" in page
    with sessions() as session:
        results = measure(load_rows(session, "unranked"))
    assert f"the label was not checked in {edits} of" in report_markdown(results)


def test_images_without_predictions_are_left_out_and_counted(measured: Measured) -> None:
    sessions, store, _, _ = measured
    add_drawn_job(sessions, store, "gaps", per_class=1)
    with sessions.begin() as session:
        session.execute(
            delete(Prediction).where(
                Prediction.job_id == "gaps", Prediction.model == "sound", Prediction.flipped.is_(True)
            )
        )
    with sessions() as session:
        whole, gaps = measure(load_rows(session, "gaps")).results
    assert whole.counterfactuals == gaps.counterfactuals + gaps.left_out


def _report(sessions: Sessions, store: DirectoryStore, job_id: str) -> str:
    build_report(sessions, store, job_id)
    return store.get(f"reports/{job_id}/report.html").decode()


@pytest.mark.parametrize(
    ("old", "new", "marked"),
    [
        ("A bus by day.", "A bus at night.", "A bus <del>by day</del> <ins>at night</ins>."),
        ("A bus.", "A bus. It rains.", "A bus. <ins>It rains.</ins>"),
        ("A red bus.", "A bus.", "A <del>red</del> bus."),
        ("A <b>", "A <b>", "A &lt;b&gt;"),
        ("A bus.", "", "A bus."),
        ("", "", ""),
    ],
)
def test_changed_words_are_marked(old: str, new: str, marked: str) -> None:
    assert marked_caption(old, new) == marked


def test_percentages_do_not_round_to_certainty() -> None:
    assert [percent(p) for p in (0, 0.002, 0.5, 0.998, 1, None)] == [
        "0\xa0%",
        "0.2\xa0%",
        "50\xa0%",
        "99.8\xa0%",
        "100\xa0%",
        "–",
    ]


@pytest.mark.slow
def test_the_page_has_both_estimands_and_the_pairs_that_their_null_arms_cost(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite:///{tmp_path}/contrafact.db")
    migrate(engine)
    sessions, store = open_sessions(engine), DirectoryStore(tmp_path / "objects")
    add_drawn_job(sessions, store)
    edits = update(Counterfactual).where(Counterfactual.arm == "edit")
    with sessions.begin() as session:
        session.execute(edits.values(null_check=""))
        session.execute(edits.where(Counterfactual.position < 10).values(null_check="label"))
    results = build_report(sessions, store, "drawn")
    page = store.get("reports/drawn/report.html").decode()
    (funnel,) = results.funnels
    assert funnel.counted is not None
    (lost,) = funnel.lost_to_arm
    assert (lost.check, lost.count) == ("label", funnel.accepted.count - funnel.counted.count)
    assert lost.count > 0
    for result in results.results:
        assert result.counterfactuals == funnel.counted.count
        assert result.metrics is not None
        assert result.metrics.error_rate.n == funnel.accepted.count, "the papers' figures are over accepted ones"
        assert all([other.estimand for other in effect.others] == ["edits"] for effect in result.cells)
    assert "edits filtered alone" in page
    assert "arm fails: label" in page
    assert "against their null arms" in page
    assert "against null arm<" not in page, "there are no sham arms"


def test_reports_of_older_versions_have_errors_by_factor_of_dillema(measured: Measured) -> None:
    counts = {"valid": 96, "valid_accepted": 70, "invalid": 70, "invalid_accepted": 14}
    older = {"source": "profile", "data": "tinyworld", "errors": {"default": counts, "weather": counts}, "n": 166}
    metrics = measured[2].model_dump(mode="json") | {"calibration": older}
    calibration = JobResults.model_validate(metrics).calibration
    assert calibration is not None
    assert list(calibration.errors) == ["dillema"]
    assert calibration.errors["dillema"]["weather"].valid_accepted == 70
    assert Calibration.model_validate(calibration.model_dump(mode="json")) == calibration
