"""What control items show, and that raters who finish together, fail or skip them neither lose nor spoil answers."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture
from sqlalchemy import select, update

from gateway.database.sessions import reading
from gateway.database.tables import Counterfactual, Image, SourceImage, StudyRater
from shared.images import from_array
from shared.schemas.studies import QUESTIONS
from shared.storage import image_key
from tests.support.drawn_job import serve_drawn_job
from tests.support.gateway_under_test import Gateway
from tests.support.study_raters import careful, csv_of, invite, items_of, make_study, rate_all

HEADER = ["rater", "item", "label_kept", "realistic"]


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    """A finished job `drawn` of nine source images on SQLite."""
    with serve_drawn_job(tmp_path, per_class=3) as served:
        yield served


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


def test_a_broken_control_of_a_segmentation_job_lacks_a_class(gateway: Gateway) -> None:
    def mask(image: type[SourceImage] = SourceImage, **columns: object) -> None:
        with gateway.context.sessions.begin() as session:
            session.execute(update(image).values(mask_digest=image.digest, ground_truth=None, **columns))

    mask(mask_classes=["road", "car"])
    assert "broken" not in make_study(gateway, {"per_method": 30, "controls": 4})["control_items"]
    with gateway.context.sessions.begin() as session:
        empty = session.scalars(select(SourceImage).order_by(SourceImage.id)).first()
        assert empty is not None
        empty.mask_classes = ["road"]
        c = Counterfactual
        null = select(c.image_digest).where(c.source_image_id == empty.id, c.arm == "null")
        digest = session.scalar(null.where(c.accepted))
    study = make_study(gateway, {"per_method": 30, "controls": 4})
    assert {item.shown_digest for item in items_of(gateway, study["id"]).values() if item.kind == "broken"} == {digest}


def test_a_broken_control_is_no_original_of_the_study_and_attention_repeats_no_edit(gateway: Gateway) -> None:
    study = make_study(gateway, {"per_method": 3, "controls": 2})
    items = list(items_of(gateway, study["id"]).values())
    with reading(gateway.context.sessions) as session:
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


def test_the_changed_image_has_the_size_of_the_original(gateway: Gateway) -> None:
    study = make_study(gateway, {"per_method": 1, "controls": 0, "attention": 0})
    (item,) = items_of(gateway, study["id"])
    large = from_array(np.random.default_rng(3).integers(0, 256, (90, 200, 3)).astype(np.uint8))
    gateway.context.store.put(image_key(large.digest), large.png)
    with gateway.context.sessions.begin() as session:
        session.add(Image(digest=large.digest, width=200, height=90, bytes=len(large.png)))
        session.flush()
        session.execute(update(items_of(gateway, study["id"])[item].__class__).values(shown_digest=large.digest))
    (invitation,) = invite(gateway, study["id"])
    for path in (f"/studies/{study['id']}/items/{item}/changed", f"{invitation['link']}/{item}/changed.png"):
        assert Picture.open(io.BytesIO(gateway.client.get(path).content)).size == (128, 128)


@pytest.mark.slow
def test_a_study_recovers_from_spam(gateway: Gateway) -> None:
    study = make_study(gateway, {"per_method": 10, "items_per_rater": 5, "raters_per_item": 1, "controls": 4})
    items = items_of(gateway, study["id"])
    edits = [name for name, item in items.items() if item.kind == "edit"]
    rated = [*edits[:5], *study["checks"]]
    spam = [[f"spam-{rater}", item, "yes", "yes"] for rater in range(5) for item in rated]
    address = f"/studies/{study['id']}/answers.csv"
    assert gateway.client.put(address, content=csv_of(HEADER, spam)).is_success
    for _ in range(2):
        (invitation,) = invite(gateway, study["id"])
        rate_all(gateway, invitation["link"], study)
    assert gateway.client.get(f"/studies/{study['id']}").json()["complete"] == 10


def test_raters_without_a_control_item_do_not_count(gateway: Gateway) -> None:
    study = make_study(gateway, {"per_method": 3, "raters_per_item": 1, "controls": 4})
    items = items_of(gateway, study["id"])
    questions = QUESTIONS["dillema"]
    rows = {name: ["ann", name, *(careful(item, question) for question in questions)] for name, item in items.items()}
    address = f"/studies/{study['id']}"

    def upload(names: list[str]) -> dict[str, int]:
        content = csv_of(HEADER, [rows[name] for name in names])
        reply: dict[str, int] = gateway.client.put(f"{address}/answers.csv", content=content).json()
        return reply

    edits = [name for name, item in items.items() if item.kind == "edit"]
    assert upload(edits) == {"answers": 3, "raters": 1, "unchecked_raters": 1}
    results = gateway.client.get(f"{address}/results").json()
    assert (results["complete"], results["raters"][0]["excluded"]) == (0, True)
    assert gateway.client.get("/jobs/drawn/reviews").json()["reviews"] == []
    assert upload(study["checks"])["unchecked_raters"] == 0
    results = gateway.client.get(f"{address}/results").json()
    assert (results["complete"], results["raters"][0]["excluded"]) == (3, False)
    assert len(gateway.client.get("/jobs/drawn/reviews").json()["reviews"]) == 3
