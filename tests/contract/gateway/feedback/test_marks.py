"""Marks of own images over HTTP and the command line: what to mark, what is stored, and how the report uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrafact.cli import app
from gateway.auth.keys import Scope, create_key
from shared.schemas.effects import Corroboration
from shared.schemas.own_images import OwnImagesView
from tests.support.compared_findings import digests_of, write_compared_report
from tests.support.databases import ON_SQLITE
from tests.support.drawn_job import add_drawn_job, add_night_buses
from tests.support.gateway_under_test import Gateway, serve_gateway

NIGHT = {"factor": "weather", "value": "night"}


class Compared:
    """The job `drawn` has 14 buses by day and 16 at night. The scorer misses 2 of these, and chose 3 others."""

    def __init__(self, gateway: Gateway) -> None:
        context = gateway.context
        self.gateway, self.sessions, self.store = gateway, context.sessions, context.store
        add_drawn_job(self.sessions, self.store, per_class=14)
        add_night_buses(self.sessions, self.store, 16)
        names = digests_of(self.sessions)
        self.nights = sorted(digest for name, digest in names.items() if "night" in name)
        self.days = sorted(digest for name, digest in names.items() if "night" not in name)
        self.chosen = [*self.nights[2:], *self.days[:3]]
        self.report()

    def report(self) -> Corroboration:
        """The comparison of the finding, after the report was built again."""
        results = write_compared_report(self.sessions, self.store, self.chosen)
        effect = next(effect for figures in results.results for effect in figures.findings if effect.corroboration)
        assert (effect.cell.label, effect.cell.value, effect.cell.direction) == ("bus", "night", "to")
        assert effect.corroboration is not None
        return effect.corroboration

    def listed(self) -> OwnImagesView:
        return OwnImagesView.model_validate(self.gateway.client.get("/jobs/drawn/own-images").json())

    def mark(self, image: str, shows: str) -> None:
        reply = self.gateway.client.put(f"/jobs/drawn/own-images/{image}", json={**NIGHT, "shows": shows})
        assert reply.status_code == 200, reply.text

    def mark_as_drawn(self, images: list[str]) -> None:
        for image in images:
            self.mark(image, "yes" if image in self.nights else "no")


@pytest.fixture
def compared(database_url: str, tmp_path: Path) -> Iterator[Compared]:
    """On SQLite, then on Postgres."""
    with serve_gateway(tmp_path, database_url) as gateway:
        yield Compared(gateway)


@pytest.mark.slow
@ON_SQLITE
def test_the_images_to_mark_are_the_choice_and_near_misses_in_random_order(compared: Compared) -> None:
    (value,) = compared.listed().values
    assert (value.factor, value.value, value.classes) == ("weather", "night", ["bus"])
    digests = [image.image for image in value.images]
    assert digests == sorted(digests)
    assert set(compared.chosen) < set(digests)
    assert len(digests) == len(compared.chosen) + 8
    assert not any(image.marks for image in value.images)


def test_marks_overrule_the_scorer_and_the_report_says_so(compared: Compared) -> None:
    before = compared.report()
    assert (before.chosen_by, before.marks, before.showing.n, before.rest.n) == ("scorer", None, 17, 13)

    compared.mark_as_drawn([compared.nights[2], compared.days[0]])
    part = compared.report()
    assert (part.chosen_by, part.showing.n, part.rest.n) == ("scorer and eye", 16, 14)
    assert part.marks is not None
    assert (part.marks.confirmed, part.marks.refused, part.marks.precision.n) == (1, 1, 2)

    compared.mark_as_drawn([*compared.nights, *compared.days[:3]])
    after = compared.report()
    assert (after.chosen_by, after.showing.n, after.rest.n) == ("eye", 16, 14), "as the images were drawn"
    assert after.marks is not None
    assert (after.marks.confirmed, after.marks.refused, after.marks.missed) == (16, 3, 2)
    precision = after.marks.precision
    assert (precision.count, precision.n) == (14, 17)
    assert precision.low < 14 / 17 < precision.high
    assert {image.image for image in after.images} == set(compared.nights)
    assert {image.marked for image in after.images} == {"yes"}
    assert after.difference is not None
    assert before.difference is not None
    assert after.difference < before.difference, "the scorer's errors pull the difference towards zero"
    assert after.to_mark == before.to_mark, "marks change nothing about what is to mark"

    page = compared.store.get("reports/drawn/compared.html").decode()
    assert re.search(r"by eye \(14 [^)]*17, 2 [^)]*\)", page)
    assert "precision" in page


@pytest.mark.slow
def test_a_new_mark_replaces_the_old_and_reviewers_decide_by_majority(database_url: str, tmp_path: Path) -> None:
    with serve_gateway(tmp_path, database_url, authentication=True) as gateway:
        compared = Compared(gateway)

        def headers(*scopes: Scope, owner: str = "local") -> dict[str, str]:
            with compared.sessions.begin() as session:
                return {"Authorization": f"Bearer {create_key(session, owner, scopes)}"}

        ann, ben = headers("review"), headers("review")
        address = f"/jobs/drawn/own-images/{compared.nights[2]}"
        for reviewer, shows in ((ann, "no"), (ben, "yes")):
            assert gateway.client.put(address, json={**NIGHT, "shows": shows}, headers=reviewer).status_code == 200
        divided = compared.report()
        assert divided.marks is not None
        assert (divided.marks.confirmed, divided.marks.refused, divided.marks.undecided) == (0, 0, 1)
        assert (divided.showing.n, divided.rest.n) == (16, 13), "a divided image is in neither sample"

        assert gateway.client.put(address, json={**NIGHT, "shows": "unsure"}, headers=ann).status_code == 200
        settled = compared.report()
        assert settled.marks is not None
        assert (settled.marks.confirmed, settled.marks.undecided, settled.showing.n) == (1, 0, 17)
        (value,) = gateway.client.get("/jobs/drawn/own-images", headers=ann).json()["values"]
        (marks,) = [image["marks"] for image in value["images"] if image["marks"]]
        assert sorted(mark["shows"] for mark in marks) == ["unsure", "yes"]

        refusal = gateway.client.put(address, json={**NIGHT, "shows": "yes"}, headers=headers("submit"))
        assert refusal.status_code == 403
        stranger = headers("review", owner="carl")
        assert gateway.client.put(address, json={**NIGHT, "shows": "yes"}, headers=stranger).status_code == 404
        assert gateway.client.get("/jobs/drawn/own-images", headers=stranger).status_code == 404


@pytest.mark.slow
@ON_SQLITE
def test_malformed_marks_are_refused(compared: Compared) -> None:
    bodies = {
        "shows": {**NIGHT, "shows": "maybe"},
        "those to mark are: night (weather)": {"factor": "weather", "value": "dusk", "shows": "yes"},
        "factor": {"shows": "yes"},
        "note": {**NIGHT, "shows": "yes", "note": "dark"},
    }
    for words, body in bodies.items():
        reply = compared.gateway.client.put(f"/jobs/drawn/own-images/{compared.nights[0]}", json=body)
        assert reply.status_code == 422, reply.text
        assert words in reply.json()["detail"]


@pytest.mark.slow
def test_marks_need_a_source_image_of_the_job_and_go_with_it(compared: Compared) -> None:
    client = compared.gateway.client
    for path in (f"/jobs/drawn/own-images/{'0' * 64}", f"/jobs/none/own-images/{compared.nights[0]}"):
        assert client.put(path, json={**NIGHT, "shows": "yes"}).status_code == 404
    assert client.get("/jobs/none/own-images").status_code == 404
    compared.mark(compared.nights[0], "yes")
    assert client.delete("/jobs/drawn").status_code == 204
    assert client.get("/jobs/drawn/own-images").status_code == 404


@pytest.mark.slow
@ON_SQLITE
def test_the_command_line_marks_and_lists(compared: Compared) -> None:
    def contrafact(*arguments: str, code: int = 0) -> str:
        address = str(compared.gateway.client.base_url)
        result = CliRunner().invoke(app, list(arguments), env={"CONTRAFACT_URL": address, "COLUMNS": "300"})
        assert result.exit_code == code, result.output
        return result.output

    image = compared.nights[3]
    of_night = ("--factor", "weather", "--value", "night")
    assert "night yes" in contrafact("mark", "drawn", image, *of_night, "--shows", "yes")
    view = OwnImagesView.model_validate(json.loads(contrafact("own-images", "drawn", "--json")))
    assert [mark.shows for value in view.values for own_image in value.images for mark in own_image.marks] == ["yes"]
    assert "yes (local)" in contrafact("own-images", "drawn")
    assert "shows" in contrafact("mark", "drawn", image, *of_night, "--shows", "perhaps", code=2)
