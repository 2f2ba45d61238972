"""Studies over HTTP: what is sampled and shown, which raters count, what follows, and what is refused."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from sqlalchemy import select, update

from gateway.auth.keys import create_key
from gateway.database.sessions import reading
from gateway.database.tables import Answer, Counterfactual, Image, Prediction, SourceImage, StudyItem, StudyRater
from shared.media.images import from_array
from shared.media.storage import image_key
from shared.schemas.studies import LABEL_KEPT, QUESTIONS, Question
from tests.support.drawn_job import add_drawn_job, serve_drawn_job
from tests.support.gateway_under_test import Gateway, key_of, serve_gateway
from tests.support.log_lines import log
from tests.support.study_raters import careful, csv_of, invite, items_of, make_study, page, rate_all

__all__ = ["log"]
HEADER = ["rater", "item", "label_kept", "realistic"]
SMALL = {"per_method": 10, "items_per_rater": 6, "raters_per_item": 2, "controls": 4}


@pytest.fixture
def gateway(database_url: str, tmp_path: Path) -> Iterator[Gateway]:
    """A finished job `drawn` of 18 source images, with its report; on SQLite, then on Postgres."""
    with serve_drawn_job(tmp_path, database_url, per_class=6) as served:
        yield served


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The same with six source images on SQLite, for requests that are refused."""
    with serve_drawn_job(tmp_path_factory.mktemp("studies"), per_class=2) as served:
        yield served


@pytest.mark.slow
def test_the_sample_is_the_first_accepted_edits_and_controls_have_known_answers(gateway: Gateway) -> None:
    study = make_study(gateway, SMALL)
    assert study["items"] == 10
    assert study["control_items"] == {"null": 2, "broken": 2, "attention": 1}
    kinds = {name: item.kind for name, item in items_of(gateway, study["id"]).items()}
    assert {kinds[name] for name in study["checks"]} == {"null", "broken", "attention"}
    assert len(study["checks"]) == 5
    with reading(gateway.context.sessions) as session:
        c = Counterfactual
        edits = session.scalars(select(c).where(c.arm == "edit", c.accepted).order_by(c.id)).all()
        items = list(items_of(gateway, study["id"]).values())
        assert {item.counterfactual_id for item in items if item.kind == "edit"} == {edit.id for edit in edits[:10]}
        for item in items:
            edit = session.get_one(Counterfactual, item.counterfactual_id)
            truth = session.get_one(SourceImage, edit.source_image_id).ground_truth
            shown = session.scalars(
                select(SourceImage.ground_truth).join(c).where(c.image_digest == item.shown_digest)
            ).all()
            arms = session.scalars(select(c.arm).where(c.image_digest == item.shown_digest)).all()
            assert (truth in shown) == (item.kind != "broken")
            assert arms == ["null" if item.kind in ("null", "broken") else "edit"], "a source image looks sharper"


@pytest.mark.slow
def test_raters_get_items_evenly_in_an_order_of_their_own(gateway: Gateway) -> None:
    study = make_study(gateway, SMALL)
    links = invite(gateway, study["id"], 5)
    assert {link["items"] for link in links} == {6 + 4 + 1}
    assert len({link["link"] for link in links}) == 5
    with reading(gateway.context.sessions) as session:
        raters = session.scalars(select(StudyRater)).all()
        assert not any(link["link"].rpartition("/")[2] in str(vars(rater)) for link in links for rater in raters)
        kinds = items_of(gateway, study["id"])
        load = Counter(item for rater in raters for item in rater.items if kinds[item].kind == "edit")
    assert set(load.values()) == {3}, "30 places for 10 edits"
    orders = {tuple(item for item in rater.items if kinds[item].kind != "edit") for rater in raters}
    assert len(orders) > 1


@pytest.mark.slow
def test_the_page_shows_nothing_that_gives_the_answer_away(gateway: Gateway) -> None:
    study = make_study(gateway, {**SMALL, "questions": "lance"})
    (invitation,) = invite(gateway, study["id"])
    with reading(gateway.context.sessions) as session:
        hidden = {*session.scalars(select(Counterfactual.id)), *session.scalars(select(SourceImage.id))}
        hidden |= {*session.scalars(select(SourceImage.file_name)), *session.scalars(select(SourceImage.digest))}
        hidden |= {digest for digest in session.scalars(select(Counterfactual.image_digest)) if digest}
    hidden |= {"drawn/", "dillema", "accepted", "rejected", "night-bus", "null", "broken", study["id"]}
    sides: dict[str, set[str]] = {}
    for item in items_of(gateway, study["id"]).values():
        with reading(gateway.context.sessions) as session:
            mine = item.id in session.scalars(select(StudyRater.items)).one()
        if not mine:
            page(gateway, f"{invitation['link']}?item={item.id}", 404)
            assert gateway.client.get(f"{invitation['link']}/{item.id}/changed.png").status_code == 404
            continue
        text = page(gateway, f"{invitation['link']}?item={item.id}")
        assert not [name for name in hidden if name in text.replace(invitation["link"], "")]
        assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|(?:src|href)=\"https?:", text)
        sides.setdefault(re.sub(r"[0-9a-f]{16}|this change: .*|“.*?”|\d+", "", text), set()).add(item.kind)
        for side in ("original", "changed"):
            image = gateway.client.get(f"{invitation['link']}/{item.id}/{side}.png")
            assert image.headers["content-type"] == "image/png"
            assert b"XML:com.adobe.xmp" not in image.content
    assert {"edit", "null", "broken"} in sides.values(), "edits and control items look the same"


def test_a_study_from_the_links_to_the_reviews(gateway: Gateway) -> None:
    study = make_study(gateway, {**SMALL, "questions": "lance"})
    for invitation in invite(gateway, study["id"], 4):
        assert rate_all(gateway, invitation["link"], study) == 11
    view = gateway.client.get(f"/studies/{study['id']}").json()
    assert (view["invited"], view["finished"], view["answered"], view["complete"]) == (4, 4, 44, 10)
    results = gateway.client.get(f"/studies/{study['id']}/results").json()
    assert [(rater["correct"], rater["controls"], rater["excluded"]) for rater in results["raters"]] == [
        (4, 4, False)
    ] * 4
    figures = {row["question"]: row for row in results["figures"]}
    assert (figures["label_kept"]["yes"]["count"], figures["label_kept"]["items"]) == (10, 10)
    assert (figures["ethics"]["yes"]["count"], figures["ethics"]["no"]) == (0, 10)
    assert figures["realism"]["mean"]["value"] == 4
    reviews = gateway.client.get("/jobs/drawn/reviews").json()["reviews"]
    assert {(row["reviewer"], row["verdict"]) for row in reviews} == {(f"study-{study['id']}", "valid")}
    edits = {item.counterfactual_id for item in items_of(gateway, study["id"]).values() if item.kind == "edit"}
    assert {row["counterfactual"] for row in reviews} == edits
    calibration = gateway.client.get("/jobs/drawn/calibration").json()
    assert calibration["methods"][0]["answered"] <= 10, "the consensus is part of the sample of reviews"
    assert gateway.client.delete(f"/studies/{study['id']}").status_code == 204
    with reading(gateway.context.sessions) as session:
        assert session.scalars(select(Answer)).all() == [], "ratings and reviews go with their study"
    assert gateway.client.get(invitation["link"]).status_code == 404


def test_raters_name_failure_modes_which_count_in_the_reviews(small: Gateway) -> None:
    """LANCE's figure 12; once only reviewers of a job could name them."""
    failure = Question(name="failure", text="What is wrong?", kind="failure")
    questions = [question.model_dump() for question in (LABEL_KEPT, failure)]
    study = make_study(small, {**SMALL, "questions": questions})
    biased, divided, *_ = sorted(name for name, item in items_of(small, study["id"]).items() if item.kind == "edit")

    first_rater: list[int] = []  # of the image on which raters disagree; who rates it is drawn

    def answer(rater: int) -> Callable[[StudyItem, Question], str]:
        def choose(item: StudyItem, question: Question) -> str:
            if question.kind == "failure" and item.id == biased:
                return "bias"
            if question.kind == "failure" and item.id == divided:
                first_rater.append(rater)
                return "poor_image" if rater == first_rater[0] else "bias"
            return careful(item, question)

        return choose

    for number, invitation in enumerate(invite(small, study["id"], 4)):
        rate_all(small, invitation["link"], study, answer(number))
    results = small.client.get(f"/studies/{study['id']}/results").json()
    (row,) = [row for row in results["figures"] if row["question"] == "failure"]
    assert (row["items"], row["undecided"], row["no"]) == (10, 1, 8)
    assert [(share["mode"], share["share"]["count"], share["share"]["n"]) for share in row["failures"]] == [
        ("bias", 1, 10)
    ]
    reviews = small.client.get("/jobs/drawn/reviews").json()["reviews"]
    assert Counter(review["failure"] for review in reviews) == {None: 9, "bias": 1}
    assert "the generator's bias" in small.client.get("/jobs/drawn/studies/view").text.replace("&#39;", "'")


def test_dillema_s_study_asks_about_wrong_images_and_about_an_element_where_it_is_shown(small: Gateway) -> None:
    study = make_study(small, {"per_method": 40, "sample": "misclassified", "controls": 0, "attention": 0})
    with reading(small.context.sessions) as session:
        rows = select(Prediction.counterfactual_id).join(SourceImage, Prediction.source_image_id == SourceImage.id)
        wrong = {*session.scalars(rows.where(Prediction.predicted != SourceImage.ground_truth))} - {None}
        accepted = {
            *session.scalars(select(Counterfactual.id).where(Counterfactual.accepted, Counterfactual.arm == "edit"))
        }
    edits = {item.counterfactual_id for item in items_of(small, study["id"]).values()}
    assert edits == wrong & accepted
    assert edits
    study = make_study(small, {"per_method": 40, "sample": "misclassified", "model": "sound", "controls": 0})
    by_one = {item.counterfactual_id for item in items_of(small, study["id"]).values() if item.kind == "edit"}
    assert by_one < edits, "the other model gets buses at night wrong"

    study = make_study(small, {"per_method": 40, "element": "bus", "raters_per_item": 5, "controls": 4})
    items = items_of(small, study["id"])
    with reading(small.context.sessions) as session:
        labels = select(Counterfactual.id, SourceImage.ground_truth).join(SourceImage)
        label_of = {row[0]: row[1] for row in session.execute(labels)}
    assert {label_of[item.counterfactual_id] for item in items.values()} == {"bus"}
    (split, *_) = sorted(item.id for item in items.values() if item.kind == "edit")
    answers = [
        [str(rater), item.id, "no" if item.id == split and rater < 2 else careful(item, LABEL_KEPT), "yes"]
        for rater in range(5)
        for item in items.values()
        if item.kind != "attention"
    ]
    assert small.client.put(f"/studies/{study['id']}/answers.csv", content=csv_of(HEADER, answers)).status_code == 200
    results = small.client.get(f"/studies/{study['id']}/results").json()
    (kept,) = [row for row in results["figures"] if row["question"] == "label_kept"]
    assert (kept["undecided"], kept["decided"]["value"], kept["items"]) == (1, 1, study["items"])
    assert small.client.get("/jobs/drawn/reviews").json()["reviews"] == [], "a kept element is no valid image"


def test_an_answer_can_be_changed_and_takes_its_review_along(gateway: Gateway) -> None:
    study = make_study(gateway, {"per_method": 3, "raters_per_item": 1, "controls": 0, "attention": 0})
    (invitation,) = invite(gateway, study["id"])
    rate_all(gateway, invitation["link"], study)
    item = next(iter(items_of(gateway, study["id"]).values()))
    again = page(gateway, f"{invitation['link']}?item={item.id}")
    assert len(re.findall(r"<input[^>]* checked>", again)) == 2
    answers = {"label_kept": "no", "realistic": "unsure"}
    assert gateway.client.post(f"{invitation['link']}/{item.id}", data=answers).status_code == 303
    reviews = gateway.client.get("/jobs/drawn/reviews").json()["reviews"]
    verdicts = {row["counterfactual"]: row["verdict"] for row in reviews}
    assert verdicts.pop(item.counterfactual_id) == "invalid"
    assert set(verdicts.values()) == {"valid"}


@pytest.mark.slow
def test_raters_who_fail_the_control_items_do_not_count(gateway: Gateway) -> None:
    study = make_study(gateway, {**SMALL, "raters_per_item": 1, "items_per_rater": 10})
    good, yes_to_all, absent = invite(gateway, study["id"], 3)

    def says_yes(item: StudyItem, question: Question) -> str:
        return "yes"

    def misses_attention(item: StudyItem, question: Question) -> str:
        return "no" if item.kind in ("attention", "edit") else careful(item, question)

    rate_all(gateway, yes_to_all["link"], study, says_yes)
    rate_all(gateway, absent["link"], study, misses_attention)
    results = gateway.client.get(f"/studies/{study['id']}/results").json()
    assert results["complete"] == 0
    assert gateway.client.get("/jobs/drawn/reviews").json()["reviews"] == []
    rate_all(gateway, good["link"], study)
    results = gateway.client.get(f"/studies/{study['id']}/results").json()
    excluded = {rater["rater"]: rater["excluded"] for rater in results["raters"]}
    assert excluded == {good["rater"]: False, yes_to_all["rater"]: True, absent["rater"]: True}
    assert results["complete"] == 10
    assert results["figures"][0]["yes"]["count"] == 10
    assert len(gateway.client.get("/jobs/drawn/reviews").json()["reviews"]) == 10


@pytest.mark.slow
def test_a_thousand_raters_of_known_quality_through_csv(gateway: Gateway) -> None:
    """600 careful raters (5 % wrong), 200 who guess, 200 who say yes: the truth comes back, the others are left out."""
    study = make_study(gateway, {"per_method": 60, "controls": 8, "questions": "dillema"})
    items = items_of(gateway, study["id"])
    random = np.random.default_rng(21)
    edits = [item.id for item in items.values() if item.kind == "edit"]
    checks = [item.id for item in items.values() if item.kind != "edit"]
    truth = {item: bool(random.random() < 0.7) for item in edits}
    truth |= {name: items[name].kind == "null" for name in checks}

    def answer(rater: int, item: str) -> str:
        if rater >= 800:
            return "yes"
        if items[item].kind == "attention":
            return "unsure" if rater < 600 else str(random.choice(["yes", "no", "unsure"]))
        wrong = random.random() < (0.05 if rater < 600 else 0.5)
        return "yes" if truth[item] != wrong else "no"

    rows = [
        [f"rater-{rater:04}", item, answer(rater, item), "unsure" if items[item].kind == "attention" else "yes"]
        for rater in range(1_000)
        for item in [*random.choice(edits, 10, replace=False), *checks]
    ]
    reply = gateway.client.put(
        f"/studies/{study['id']}/answers.csv", content=csv_of(["rater", "item", "label_kept", "realistic"], rows)
    )
    assert (reply.status_code, reply.json()) == (200, {"answers": len(rows), "raters": 1_000, "unchecked_raters": 0})
    results = gateway.client.get(f"/studies/{study['id']}/results").json()
    excluded = {rater["name"]: rater["excluded"] for rater in results["raters"]}
    assert sum(excluded[f"rater-{rater:04}"] for rater in range(600)) < 60
    assert sum(excluded[f"rater-{rater:04}"] for rater in range(600, 800)) > 180
    assert all(excluded[f"rater-{rater:04}"] for rater in range(800, 1_000))
    assert results["complete"] == len(edits) > 40
    label_kept = results["figures"][0]
    assert label_kept["yes"]["count"] == sum(truth[item] for item in edits)
    share = sum(truth[item] for item in edits) / len(edits)
    says_yes = share * 0.95 + (1 - share) * 0.05
    expected = 1 - 0.05 * 0.95 / (says_yes * (1 - says_yes))
    assert (
        results["agreement"]["label_kept"]["low"] - 0.05 < expected < results["agreement"]["label_kept"]["high"] + 0.05
    )
    verdicts = {row["counterfactual"]: row["verdict"] for row in _reviews(gateway)}
    assert verdicts == {items[name].counterfactual_id: "valid" if truth[name] else "invalid" for name in edits}


def _reviews(gateway: Gateway) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = gateway.client.get("/jobs/drawn/reviews?limit=200").json()["reviews"]
    return rows


def test_csv_goes_out_and_in_and_formulas_are_disarmed(gateway: Gateway) -> None:
    questions = [{"name": "good", "text": "=2+3 is what it shows?"}]
    study = make_study(gateway, {"questions": questions, "controls": 0, "attention": 0, "per_method": 3})
    address = f"/studies/{study['id']}"
    items = list(csv.DictReader(io.StringIO(gateway.client.get(f"{address}/items.csv").text)))
    assert [row["good"] for row in items] == ["'=2+3 is what it shows?"] * 3
    assert set(items[0]) == {"item", "original_image", "changed_image", "instruction", "good"}
    assert gateway.client.get(items[0]["changed_image"]).headers["content-type"] == "image/png"
    rows = [["=cmd|' /C calc'!A0", items[0]["item"], "yes"], ["@ben", items[1]["item"], "NO"]]
    rows.append(["＝1", items[2]["item"], "yes"])  # spreadsheets take full-width signs for the plain ones
    assert gateway.client.put(f"{address}/answers.csv", content=csv_of(["rater", "item", "good"], rows)).is_success
    text = gateway.client.get(f"{address}/answers.csv").text
    stored = {row["rater"]: row["good"] for row in csv.DictReader(io.StringIO(text))}
    assert stored == {"'=cmd|' /C calc'!A0": "yes", "'@ben": "no", "'＝1": "yes"}
    again = gateway.client.put(f"{address}/answers.csv", content=text.encode())
    assert again.json() == {"answers": 3, "raters": 3, "unchecked_raters": 0}
    assert gateway.client.get(f"{address}/answers.csv").text == text, "the same raters"
    assert gateway.client.get(address).json()["answered"] == 3


def test_names_that_look_the_same_are_one_rater(gateway: Gateway) -> None:
    """`A`, `a` and `A` with a mark that nobody sees were three raters."""
    questions = [{"name": "good", "text": "Is it good?"}]
    study = make_study(gateway, {"questions": questions, "controls": 0, "attention": 0, "per_method": 3})
    address = f"/studies/{study['id']}/answers.csv"
    header, items = ["rater", "item", "good"], list(items_of(gateway, study["id"]))
    rows = [[name, item, "yes"] for name, item in zip(("A", "a", "A\u200d"), items, strict=True)]
    for sent in (rows, [[" a ", items[0], "no"]]):
        assert gateway.client.put(address, content=csv_of(header, sent)).json()["raters"] == 1
    stored = csv.DictReader(io.StringIO(gateway.client.get(address).text))
    assert {(row["rater"], row["item"]): row["good"] for row in stored} == {
        ("A", item): "no" if item == items[0] else "yes" for item in items
    }
    for names, words in ((["A\u200b"], "control characters"), (["A", "a"], "has rated item")):
        reply = gateway.client.put(address, content=csv_of(header, [[name, items[1], "yes"] for name in names]))
        assert reply.status_code == 422
        assert words in reply.json()["detail"]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"rater,item\r\nann,ITEM\r\n", 422, "first line needs each of rater, item, label_kept, realistic"),
        (b"rater,item,label_kept,realistic\r\nann,ITEM,yes\r\n", 422, "line 2 has 3 columns"),
        (b"rater,item,label_kept,realistic\r\nann,ITEM,yes,maybe\r\n", 422, "line 2: answer 'realistic' with yes, no"),
        (b"rater,item,label_kept,realistic\r\nann,other,yes,no\r\n", 422, "no item 'other'"),
        (b"rater,item,label_kept,realistic\r\n,ITEM,yes,no\r\n", 422, "1 to 200 characters"),
        (b"rater,item,label_kept,realistic\r\nann,ITEM,yes,no\r\nann,ITEM,no,no\r\n", 422, "has rated item"),
        (b"rater,item,label_kept,realistic\r\nan\0n,ITEM,yes,no\r\n", 400, "U+0000"),
        (b"rater,item,label_kept,realistic\r\n\xff,ITEM,yes,no\r\n", 400, "not UTF-8"),
        (b'rater,item,label_kept,realistic\r\n"ann,ITEM,yes,no\r\n', 400, "not CSV"),
    ],
)
def test_bad_files_change_nothing(unchanged: Gateway, content: bytes, status: int, words: str) -> None:
    study = make_study(unchanged, {"per_method": 3, "controls": 2})
    item = next(iter(items_of(unchanged, study["id"])))
    reply = unchanged.client.put(f"/studies/{study['id']}/answers.csv", content=content.replace(b"ITEM", item.encode()))
    assert reply.status_code == status, reply.text
    assert words in reply.json()["detail"]
    assert unchanged.client.get(f"/studies/{study['id']}").json()["answered"] == 0


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"methods": ["lance"]}, "no method 'lance'; its methods are dillema"),
        ({"questions": [{"name": "good", "text": "Good?"}]}, "set controls to 0"),
        ({"questions": [{"name": "Good", "text": "Good?"}]}, "name"),
        ({"questions": [{"name": "item", "text": "Good?"}]}, "choose another name"),
        ({"questions": [{"name": "a", "text": "A?", "kind": "scale", "label_kept": True}]}, "yes_no"),
        ({"questions": [{"name": "a", "text": "A?"}] * 2, "controls": 0}, "two questions are named a"),
        (
            {"questions": [{"name": name, "text": "A?", "kind": "failure"} for name in "ab"], "controls": 0},
            "only one question can be of kind failure",
        ),
        ({"questions": "imagenet"}, "questions"),
        ({"title": "tab\there"}, "control character"),
        ({"per_method": 0}, "per_method"),
        ({"model": "sound"}, "set sample to misclassified"),
        ({"model": "other", "sample": "misclassified"}, "no misclassified edits of dillema that 'other' gets wrong"),
        ({"consensus": 0.5}, "consensus"),
        ({"raters": 3}, "unknown field raters"),
    ],
)
def test_malformed_studies_are_refused(unchanged: Gateway, request_fields: dict[str, object], words: str) -> None:
    before = unchanged.client.get("/jobs/drawn/studies").json()
    reply = unchanged.client.post("/jobs/drawn/studies", json=request_fields)
    assert reply.status_code == 422
    assert words in reply.json()["detail"]
    assert unchanged.client.get("/jobs/drawn/studies").json() == before


def test_the_page_refuses_wrong_answers_and_keeps_the_right_ones(gateway: Gateway) -> None:
    study = make_study(gateway, {"per_method": 3, "controls": 0, "attention": 0})
    (invitation,) = invite(gateway, study["id"])
    item = next(iter(items_of(gateway, study["id"])))
    reply = gateway.client.post(f"{invitation['link']}/{item}", data={"label_kept": "no"})
    assert reply.status_code == 422
    assert "answer &#39;realistic&#39;" in reply.text
    assert re.search(r'name="label_kept" value="no" data-key="n" checked', reply.text)
    assert gateway.client.post(f"{invitation['link']}/other", data={"label_kept": "no"}).status_code == 404
    assert gateway.client.post(f"{invitation['link']}/{item}", json={"label_kept": "no"}).status_code == 415
    many = {f"field{number}": "x" for number in range(30)}
    assert gateway.client.post(f"{invitation['link']}/{item}", data=many).status_code == 400
    assert gateway.client.get("/rate/cf_rate_unknown").status_code == 404
    assert gateway.client.get(f"/studies/{study['id']}").json()["answered"] == 0


@pytest.mark.slow
def test_a_running_job_has_no_studies_and_a_deleted_one_takes_them_along(gateway: Gateway) -> None:
    add_drawn_job(gateway.context.sessions, gateway.context.store, "other", per_class=1, state="running")
    refusal = gateway.client.post("/jobs/other/studies", json={})
    assert (refusal.status_code, "the job is running" in refusal.json()["detail"]) == (409, True)
    study = make_study(gateway, SMALL)
    (invitation,) = invite(gateway, study["id"])
    rate_all(gateway, invitation["link"], study)
    assert [row["id"] for row in gateway.client.get("/jobs/drawn/studies").json()["studies"]] == [study["id"]]
    assert gateway.client.delete("/jobs/drawn").status_code == 204
    assert gateway.client.get(f"/studies/{study['id']}").status_code == 404
    assert gateway.client.get(invitation["link"]).status_code == 404
    assert items_of(gateway, study["id"]) == {}


def test_a_link_opens_its_own_items_alone_and_no_key_opens_another_owners_study(
    database_url: str, tmp_path: Path, log: io.StringIO
) -> None:
    with serve_gateway(tmp_path, database_url, authentication=True) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store, per_class=2)
        with gateway.context.sessions.begin() as session:
            ann = {"Authorization": f"Bearer {create_key(session, 'local')}"}
            reader = {"Authorization": f"Bearer {create_key(session, 'local', ['review'])}"}
        study = make_study(gateway, {"per_method": 3, "controls": 2}, ann)
        address = f"/studies/{study['id']}"
        stranger = key_of(gateway, "carl")
        for path in (address, f"{address}/results", f"{address}/items.csv", f"{address}/answers.csv"):
            assert gateway.client.get(path, headers=stranger).status_code == 404
            assert gateway.client.get(path).status_code == 401
        assert gateway.client.post(f"{address}/invitations", json={}, headers=stranger).status_code == 404
        assert gateway.client.post(f"{address}/invitations", json={}, headers=reader).status_code == 403
        assert gateway.client.delete(address, headers=stranger).status_code == 404
        (invitation,) = gateway.client.post(f"{address}/invitations", json={}, headers=ann).json()["invitations"]
        token = invitation["link"].rpartition("/")[2]
        assert gateway.client.get(invitation["link"]).status_code == 200, "no key, no login"
        bearer = {"Authorization": f"Bearer {token}"}
        assert gateway.client.get(address, headers=bearer).status_code == 401, "the token is no key"
        item = re.search(r'action="([^"]+)"', gateway.client.get(invitation["link"]).text)
        assert item is not None
        other_site = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        answers = {question.name: "yes" for question in QUESTIONS["dillema"]}
        assert gateway.client.post(item[1], data=answers, headers=other_site).status_code == 403
        assert gateway.client.post(item[1], data=answers).status_code == 303
    assert "/rate/" in log.getvalue()
    assert token not in log.getvalue()


@pytest.mark.slow
def test_a_link_has_a_limit_of_requests(tmp_path: Path) -> None:
    with serve_drawn_job(tmp_path, per_class=1) as gateway:
        study = make_study(gateway, {"per_method": 3, "controls": 0})
        (invitation,) = invite(gateway, study["id"])
        with gateway.context.sessions.begin() as session:
            session.execute(update(StudyRater).values(requests_until=4e9))
        refusal = gateway.client.get(invitation["link"])
        assert refusal.status_code == 429
        assert int(refusal.headers["retry-after"]) >= 1


def test_raters_who_finish_at_the_same_time_lose_nothing(database_url: str, tmp_path: Path) -> None:
    with serve_drawn_job(tmp_path, database_url, per_class=2) as gateway:
        study = make_study(gateway, {"per_method": 6, "raters_per_item": 8, "controls": 0, "attention": 0})
        links = {row["rater"]: row["link"] for row in invite(gateway, study["id"], 8)}
        with reading(gateway.context.sessions) as session:
            items = {row.id: row.items for row in session.scalars(select(StudyRater))}
        answers = {question.name: "yes" for question in QUESTIONS["dillema"]}
        for rater, link in links.items():
            for item in items[rater][:-1]:
                assert gateway.client.post(f"{link}/{item}", data=answers).status_code == 303
        last = [f"{link}/{items[rater][-1]}" for rater, link in links.items()]
        with ThreadPoolExecutor(8) as pool:
            statuses = list(pool.map(lambda path: gateway.client.post(path, data=answers).status_code, last))
        assert statuses == [303] * 8
        reviews = gateway.client.get("/jobs/drawn/reviews").json()["reviews"]
        assert [row["verdict"] for row in reviews] == ["valid"] * 6


def test_a_broken_control_of_a_segmentation_job_lacks_a_class(small: Gateway) -> None:
    def mask(image: type[SourceImage] = SourceImage, **columns: object) -> None:
        with small.context.sessions.begin() as session:
            session.execute(update(image).values(mask_digest=image.digest, ground_truth=None, **columns))

    mask(mask_classes=["road", "car"])
    assert "broken" not in make_study(small, {"per_method": 30, "controls": 4})["control_items"]
    with small.context.sessions.begin() as session:
        empty = session.scalars(select(SourceImage).order_by(SourceImage.id)).first()
        assert empty is not None
        empty.mask_classes = ["road"]
        c = Counterfactual
        null = select(c.image_digest).where(c.source_image_id == empty.id, c.arm == "null")
        digest = session.scalar(null.where(c.accepted))
    study = make_study(small, {"per_method": 30, "controls": 4})
    assert {item.shown_digest for item in items_of(small, study["id"]).values() if item.kind == "broken"} == {digest}


def test_a_broken_control_is_no_original_of_the_study_and_attention_repeats_no_edit(small: Gateway) -> None:
    study = make_study(small, {"per_method": 3, "controls": 2})
    items = list(items_of(small, study["id"]).values())
    with reading(small.context.sessions) as session:
        c, s = Counterfactual, SourceImage
        edits = [item.counterfactual_id for item in items if item.kind in ("edit", "null")]
        of_edits = select(s.id).join(c, c.source_image_id == s.id).where(c.id.in_(edits))
        of_sources = select(c.image_digest).where(c.source_image_id.in_(of_edits), c.arm == "null")
        originals = set(session.scalars(of_sources))
    shown = {
        kind: {item.shown_digest for item in items if item.kind == kind} for kind in ("edit", "broken", "attention")
    }
    assert shown["broken"]
    assert not shown["broken"] & originals
    assert not shown["attention"] & shown["edit"]


def test_the_changed_image_has_the_size_of_the_original(small: Gateway) -> None:
    study = make_study(small, {"per_method": 1, "controls": 0, "attention": 0})
    (item,) = items_of(small, study["id"])
    large = from_array(np.random.default_rng(3).integers(0, 256, (90, 200, 3)).astype(np.uint8))
    small.context.store.put(image_key(large.digest), large.png)
    with small.context.sessions.begin() as session:
        session.add(Image(digest=large.digest, width=200, height=90, bytes=len(large.png)))
        session.flush()
        session.execute(update(items_of(small, study["id"])[item].__class__).values(shown_digest=large.digest))
    (invitation,) = invite(small, study["id"])
    for path in (f"/studies/{study['id']}/items/{item}/changed", f"{invitation['link']}/{item}/changed.png"):
        assert Picture.open(io.BytesIO(small.client.get(path).content)).size == (128, 128)


@pytest.mark.slow
def test_a_study_recovers_from_spam(small: Gateway) -> None:
    study = make_study(small, {"per_method": 10, "items_per_rater": 5, "raters_per_item": 1, "controls": 4})
    items = items_of(small, study["id"])
    edits = [name for name, item in items.items() if item.kind == "edit"]
    rated = [*edits[:5], *study["checks"]]
    spam = [[f"spam-{rater}", item, "yes", "yes"] for rater in range(5) for item in rated]
    address = f"/studies/{study['id']}/answers.csv"
    assert small.client.put(address, content=csv_of(HEADER, spam)).is_success
    for _ in range(2):
        (invitation,) = invite(small, study["id"])
        rate_all(small, invitation["link"], study)
    assert small.client.get(f"/studies/{study['id']}").json()["complete"] == 10


def test_raters_without_a_control_item_do_not_count(small: Gateway) -> None:
    study = make_study(small, {"per_method": 3, "raters_per_item": 1, "controls": 4})
    items = items_of(small, study["id"])
    questions = QUESTIONS["dillema"]
    rows = {name: ["ann", name, *(careful(item, question) for question in questions)] for name, item in items.items()}
    address = f"/studies/{study['id']}"

    def upload(names: list[str]) -> dict[str, int]:
        content = csv_of(HEADER, [rows[name] for name in names])
        reply: dict[str, int] = small.client.put(f"{address}/answers.csv", content=content).json()
        return reply

    edits = [name for name, item in items.items() if item.kind == "edit"]
    assert upload(edits) == {"answers": 3, "raters": 1, "unchecked_raters": 1}
    results = small.client.get(f"{address}/results").json()
    assert (results["complete"], results["raters"][0]["excluded"]) == (0, True)
    assert small.client.get("/jobs/drawn/reviews").json()["reviews"] == []
    assert upload(study["checks"])["unchecked_raters"] == 0
    results = small.client.get(f"{address}/results").json()
    assert (results["complete"], results["raters"][0]["excluded"]) == (3, False)
    assert len(small.client.get("/jobs/drawn/reviews").json()["reviews"]) == 3
