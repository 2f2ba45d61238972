"""The results page: findings first, then charts whose cells lead to the images that they count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import delete, select, update

from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.report.build import build_report
from shared.words.wording import NO_FINDING, NO_PAIR_COUNTS
from tests.support.browser import PHONE, needs_browser, open_page, overflow, violations
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.gateway_under_test import Gateway
from tests.support.pages import page_text
from tests.support.predictions import forget_truths

PAGE = "/jobs/drawn/view"
THRESHOLD = 0.75


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with one finished job `drawn` and one `running`."""
    with serve_drawn_job(tmp_path_factory.mktemp("results"), per_class=16) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, "running", per_class=1, state="running")
        yield gateway


def tile(text: str, cell: str) -> tuple[str, str]:
    """The link of a cell of the heat map, and its words."""
    link = re.search(rf'<td class="tile [^"]*"><a href="([^"]+)" aria-label="({cell}: [^"]+)"', text)
    assert link, cell
    return link[1], link[2]


def images_at(client: httpx.Client, link: str) -> int:
    """How many images the gallery shows at a link of the page, over all its pages."""
    query = link.partition("?")[2].partition("#")[0]
    return len(client.get(f"/jobs/drawn/results?{query}&limit=200").json()["counterfactuals"])


def test_a_finding_comes_first_with_flipped_images_and_what_would_settle_it(site: Gateway) -> None:
    text = page_text(site.client, PAGE)
    section = text[text.index('id="findings"') : text.index('class="verdict is-open"')]
    assert "bus, to night" in section
    assert len(re.findall(r'<article class="pair', section)) == 3
    assert section.count("flipped: bus →") == 3
    assert "changed images" in section
    assert "contrafact confirm drawn" in section
    assert text.index('id="findings"') < text.index('id="effects"') < text.index('id="confusion"')


@pytest.mark.slow
def test_each_cell_of_the_heat_map_leads_to_the_images_that_it_counts(site: Gateway) -> None:
    text = page_text(site.client, PAGE)
    effects = site.client.get("/jobs/drawn/results?limit=1").json()["metrics"]["results"][0]["cells"]
    drawn = re.findall(r'<td class="tile [^"]*"><a href="[^"]+" aria-label="', text[: text.index('id="confusion"')])
    assert len(drawn) == len(effects)
    for effect in effects[:12]:
        cell = effect["cell"]
        link, words = tile(text, f"{cell['label']}, {cell['direction']} {cell['value']}")
        assert f"{effect['sources']} image" in words
        assert images_at(site.client, link) == effect["counterfactuals"]
        assert site.client.get(link).status_code == 200
    assert ", finding" in tile(text, "bus, to night")[1]


def test_another_model_and_method_are_chosen_in_the_address(site: Gateway) -> None:
    assert re.search("<h2>.*night-bus.*dillema</h2>", page_text(site.client, PAGE))
    text = page_text(site.client, f"{PAGE}?model=sound")
    assert re.search("<h2>.*sound.*dillema</h2>", text)
    assert "model=sound" in tile(text, "bus, to night")[0]
    for wrong in ("model=nobody", "method=magic", "threshold=2", "treshold=0.5"):
        assert site.client.get(f"{PAGE}?{wrong}").status_code == 422, wrong


def test_the_figures_at_a_threshold_are_those_of_confident_predictions(site: Gateway) -> None:
    link, words = tile(page_text(site.client, f"{PAGE}?threshold={THRESHOLD}"), "bus, to night")
    with site.context.sessions() as session:
        c, p = Counterfactual, Prediction
        rows = session.execute(
            select(c.source_image_id, c.ordinal, c.arm, c.null_ordinal, c.to_value, p.scores, p.probability)
            .join(p, p.counterfactual_id == c.id)
            .join(SourceImage, SourceImage.id == c.source_image_id)
            .where(c.job_id == "drawn", p.model == "night-bus", SourceImage.ground_truth == "bus", c.accepted)
        ).all()
    right = {
        (row.source_image_id, row.ordinal): row.scores["bus"] == 1 and row.probability >= THRESHOLD for row in rows
    }
    changed = [row for row in rows if row.arm == "edit" and row.to_value == "night"]
    losses = [right[row.source_image_id, row.ordinal] - right[row.source_image_id, row.null_ordinal] for row in changed]
    points = round(100 * sum(losses) / len(losses))
    sign = "−" if points < 0 else "+" if points > 0 else ""
    assert f": {sign}{abs(points)} points, 95 % interval " in words
    assert f", {len(changed)} images" in words
    assert "finding" not in words, "a chosen threshold has no test"
    assert images_at(site.client, link) == len(changed)
    without, _ = tile(page_text(site.client, PAGE), "bus, to night"), None
    assert without[1] != words


def test_the_methods_say_that_the_threshold_is_not_theirs(site: Gateway) -> None:
    words = "All predictions count here"
    assert words in page_text(site.client, f"{PAGE}?threshold={THRESHOLD}").partition('id="methods"')[2]
    assert words not in page_text(site.client, PAGE)


def test_every_format_of_the_report_is_linked(site: Gateway) -> None:
    text = page_text(site.client, PAGE)
    for query, kind in (("", "text/html"), ("?format=md", "text/markdown"), ("?format=json", "application/json")):
        assert f'href="/jobs/drawn/report{query}"' in text
        assert site.client.get(f"/jobs/drawn/report{query}").headers["content-type"].startswith(kind)


def test_confusion_matrices_lead_to_the_images_of_their_cells(site: Gateway) -> None:
    text = page_text(site.client, PAGE)
    confusion = site.client.get("/jobs/drawn/results?limit=1").json()["metrics"]["results"][0]["confusion"]
    assert confusion["classes"] == ["boat", "bus", "car"]
    assert confusion["columns"][:3] == confusion["classes"]
    assert "truck" in confusion["columns"][3:-1], "predicted most of the classes without images"
    assert confusion["columns"][-1] == "other"
    for name in ("originals", "nulls", "counterfactuals"):
        assert all(sum(row) == pytest.approx(1) for row in confusion[name])
    links = re.findall(r'<a href="([^"]+predicted=bus[^"]*|[^"]+predicted=bus)" aria-label="bus as bus: (\d+)', text)
    assert links
    correct, number = images_at(site.client, links[0][0]), confusion["images"][1]
    assert correct / number == pytest.approx(confusion["counterfactuals"][1][1])
    for arm in ("predicted_original", "predicted_null"):
        link = re.search(rf'<a href="([^"]+{arm}=bus[^"]*)" aria-label="bus as bus', text)
        assert link
        assert 0 < images_at(site.client, link[1]) <= number
    share = confusion["counterfactuals"][1][confusion["columns"].index("truck")]
    failure = re.search(r'<a href="([^"]+predicted=truck[^"]*)" aria-label="bus as truck', text)
    assert failure
    assert images_at(site.client, failure[1]) == pytest.approx(share * number)
    assert share > 0.1
    at_threshold = page_text(site.client, f"{PAGE}?threshold={THRESHOLD}")
    assert re.search(r"bus as none: \d", at_threshold)
    assert "as none:" not in text


@pytest.mark.slow
@pytest.mark.parametrize("model", ["night-bus", "sound"])
def test_the_gallery_counts_the_images_of_each_cell_of_the_matrices(site: Gateway, model: str) -> None:
    text = page_text(site.client, f"{PAGE}?model={model}")
    matrices = text[text.index('<section id="confusion">') : text.index('<section id="methods">')]
    links = dict.fromkeys(re.findall(r'<a href="([^"]+)" aria-label="[^"]+ as ', matrices))
    assert len(links) > 12
    for link in links:
        total = re.search(r"<b>([\d,]+)</b> counterfactual", page_text(site.client, link))
        assert total
        assert int(total[1]) == images_at(site.client, link), link


def test_the_pages_of_a_job_lead_to_each_other(site: Gateway) -> None:
    text = page_text(site.client, PAGE)
    for name in ("gallery", "map", "notes", "review"):
        assert f'href="/jobs/drawn/{name}"' in text
    status = re.search(r'<a href="/jobs/drawn/notes#(\w+)">Set its status', text)
    assert status
    notes = page_text(site.client, "/jobs/drawn/notes")
    assert f'id="{status[1]}"' in notes
    pair = re.search(r'<h3><a href="([^"]+)"', page_text(site.client, "/jobs/drawn/gallery"))
    assert pair
    for path in ("/jobs/drawn/gallery", "/jobs/drawn/map", "/jobs/drawn/notes", pair[1]):
        assert re.search(rf'href="{PAGE}">[Rr]esults</a>', page_text(site.client, path)), path


@pytest.mark.slow
def test_without_ground_truth_the_classes_are_those_predicted_on_the_source(tmp_path: Path) -> None:
    with serve_drawn_job(tmp_path, per_class=16) as gateway:
        with gateway.context.sessions.begin() as session:
            session.execute(update(SourceImage).values(ground_truth=None))
            forget_truths(session, "drawn")
        build_report(gateway.context.sessions, gateway.context.store, "drawn")
        text = page_text(gateway.client, f"{PAGE}?model=sound")
        link, words = tile(text, "bus, to snow")
        assert "predicted_original=bus" in link
        number = re.search(r", (\d+) images?", words)
        assert number
        assert images_at(gateway.client, link) == int(number[1]), "each source image has one edit to snow"
        assert "as none: " in page_text(gateway.client, f"{PAGE}?threshold=0.9")
        images = re.search(r'<a href="([^"]+)">its images</a>', page_text(gateway.client, "/jobs/drawn/notes"))
        finding = re.search(r'class="finding weakness">\s*<h3><a href="([^"]+)"', page_text(gateway.client, PAGE))
        assert images
        assert finding
        assert "predicted_original=bus" in images[1]
        assert images[1] == finding[1]


def test_a_step_of_the_funnel_leads_to_its_images(site: Gateway) -> None:
    text = page_text(site.client, PAGE)
    for words in ("accepted", "rejected by an image check: label"):
        link = re.search(rf'<tr class="[a-z]+"><th scope="row"><a href="([^"]+)"[^>]*>{words}</a>', text)
        number = re.search(rf'<a href="[^"]+"[^>]*>{words}</a></th>.*?<td class="number">(\d+)</td></tr>', text)
        assert link
        assert number
        assert images_at(site.client, link[1]) == int(number[1])


@pytest.mark.slow
@pytest.mark.parametrize("models", [["night-bus", "sound"], []], ids=["nothing counts", "no models"])
def test_a_job_where_nothing_counts_claims_nothing(tmp_path: Path, models: list[str]) -> None:
    with serve_drawn_job(tmp_path, per_class=1) as gateway:
        with gateway.context.sessions.begin() as session:
            session.execute(update(Job).values(models=models))
            session.execute(update(Counterfactual).values(accepted=False, check="label"))
            if not models:
                session.execute(delete(Prediction))
        build_report(gateway.context.sessions, gateway.context.store, "drawn")
        for path in (PAGE, "/jobs/drawn/report"):
            text = page_text(gateway.client, path)
            for words in (NO_FINDING, "before confusion matrices", "Provisional."):
                assert words not in text, (path, words)
            assert (NO_PAIR_COUNTS in text) == bool(models), path
            sections = re.search(r'<nav aria-label="Sections">.*?</nav>', text, re.DOTALL)
            for id in re.findall(r'href="#([^"]+)"', sections[0]) if sections else []:
                assert f'id="{id}"' in text, (path, id)


@pytest.mark.slow
@needs_browser
@pytest.mark.parametrize("phone", [False, True], ids=["wide", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_page_is_accessible_and_fits(site: Gateway, browser: Browser, dark: bool, phone: bool) -> None:
    address = f"{str(site.client.base_url).rstrip('/')}{PAGE}?threshold=0.5"
    with open_page(browser, address, dark=dark, phone=phone) as shown:
        assert not violations(shown)
        assert overflow(shown) <= 0
        if not phone:
            scrolled = "tables => tables.filter(table => table.scrollWidth > table.clientWidth).length"
            assert shown.eval_on_selector_all(".scroll", scrolled) == 0, "every column of a table is in sight"


@pytest.mark.slow
@needs_browser
def test_the_threshold_moves_without_leaving_the_page_and_a_focused_cell_says_its_interval(
    site: Gateway, browser: Browser
) -> None:
    with open_page(browser, f"{str(site.client.base_url).rstrip('/')}{PAGE}") as shown:
        cell = shown.locator('.heat a[aria-label^="bus, to night"]').first
        before = cell.get_attribute("aria-label")
        tip = cell.locator(".tip")
        expect(tip).to_be_hidden()
        cell.focus()
        shown.keyboard.press("Shift+Tab")
        shown.keyboard.press("Tab")
        expect(tip).to_be_visible()
        expect(tip).to_contain_text("95 % interval")
        slider = shown.locator('[name="threshold"]')
        slider.fill(str(THRESHOLD))
        expect(shown.locator("#threshold-words")).to_contain_text(f"below {THRESHOLD}")
        expect(cell).not_to_have_attribute("aria-label", before or "")
        assert f"threshold={THRESHOLD}" in shown.url
        shown.reload()
        expect(shown.locator("#share")).to_have_text(str(THRESHOLD))
        assert not violations(shown)


@needs_browser
def test_the_words_of_a_cell_are_in_view_on_a_phone(site: Gateway, browser: Browser) -> None:
    with open_page(browser, f"{str(site.client.base_url).rstrip('/')}{PAGE}", phone=True) as shown:
        cells = shown.locator(".heat a")
        for number in range(0, cells.count(), 4):
            cells.nth(number).hover()
            box = cells.nth(number).locator(".tip").bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE["width"]
            assert box["y"] + box["height"] <= PHONE["height"]


HELD_KEY = """slider => {
  for (let press = 0; press < 30; press++) {
    slider.stepUp();
    for (const kind of ["input", "change"]) slider.dispatchEvent(new Event(kind, { bubbles: true }));
  }
}"""


@pytest.mark.slow
@needs_browser
def test_a_key_held_on_the_slider_asks_once_and_one_tip_shows_at_a_time(site: Gateway, browser: Browser) -> None:
    with open_page(browser, f"{str(site.client.base_url).rstrip('/')}{PAGE}") as shown:
        requests: list[str] = []
        shown.on("request", lambda request: requests.append(request.url) if "/view?" in request.url else None)
        # In one go, as a browser repeats a key that is held: presses one by one may take longer than the page's pause.
        shown.locator('[name="threshold"]').evaluate(HELD_KEY)
        share = shown.locator("#share").inner_text()
        assert float(share) > 0
        expect(shown.locator("#threshold-words")).to_contain_text(f"below {share}")
        assert len(requests) == 1, requests
        assert f"threshold={share}" in shown.url
        cells = shown.locator(".heat a")
        cells.nth(0).focus()
        shown.keyboard.press("Tab")
        shown.keyboard.press("Shift+Tab")
        expect(shown.locator(".tip:visible")).to_have_count(1)
        cells.nth(1).hover()
        expect(cells.nth(1).locator(".tip")).to_be_visible()
        expect(shown.locator(".tip:visible")).to_have_count(1)
