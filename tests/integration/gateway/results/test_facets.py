"""Counts beside filters and pages of the gallery, on both databases."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from gateway.database.sessions import Sessions
from gateway.results.browsing import browse
from gateway.results.counterfactuals import Listing, matching
from gateway.results.facets import ChangedValue, load_facets
from gateway.results.filters import Filters
from shared.media.storage import DirectoryStore
from tests.support.drawn_job import MODELS, add_drawn_job


@pytest.fixture
def session(sessions: Sessions, tmp_path: Path) -> Session:
    add_drawn_job(sessions, DirectoryStore(tmp_path / "objects"), per_class=4)
    return sessions()


def number(session: Session, filters: Filters, **changes: object) -> int:
    """How many counterfactuals match the filters with these changes."""
    query = matching("drawn", Filters.model_validate(filters.model_dump(by_alias=True, exclude_none=True) | changes))
    return session.scalar(select(func.count()).select_from(query.subquery())) or 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"class": "bus", "verdict": "accepted"},
        {"model": "sound", "flipped": False, "factor": "weather"},
        {"class": "bus", "predicted": "truck", "model": "night-bus"},
        {"class": "bus", "predicted": "truck"},
        {"predicted_original": "car", "predicted_null": "car", "model": "sound"},
        {"on": "null", "confidence_below": 0.8, "other_than": ["car"], "model": "sound"},
        {"confidence_from": 0.8, "rendered": True},
    ],
    ids=[
        "all",
        "class",
        "model",
        "predicted by a model",
        "predicted by any model",
        "predicted on the arms",
        "less certain on the null arm",
        "certain",
    ],
)
def test_every_count_is_the_number_of_rows(session: Session, fields: dict[str, object]) -> None:
    with session:
        filters = Filters.model_validate(fields)
        facets = load_facets(session, "drawn", filters, MODELS)
        assert facets.total == number(session, filters)
        assert facets.total > 0
        for name, counter in (
            ("class", facets.classes), ("method", facets.methods), ("verdict", facets.verdicts),
            ("check", facets.checks), ("flipped", facets.flips), ("model", facets.models),
        ):  # fmt: skip
            assert counter or name == "check"  # without a rejected one
            for value, count in counter.items():
                assert count == number(session, filters, **{name: value}), (name, value)
        assert ChangedValue("weather", "night" if "predicted" in fields else "snow", "to") in facets.changes
        for change, count in facets.changes.items():
            side = "value" if change.direction == "to" else "from"
            assert count == number(session, filters, **{"factor": change.factor, side: change.value}), change


def test_a_page_knows_its_place_and_the_pages_around_it(session: Session) -> None:
    with session:
        listing = Listing(verdict="accepted")
        first = browse(session, "drawn", listing, None, 5)
        second = browse(session, "drawn", listing, first.next, 5)
        third = browse(session, "drawn", listing, second.next, 5)
        assert [page.first for page in (first, second, third)] == [1, 6, 11]
        assert (first.previous, second.previous) == (None, "")
        assert browse(session, "drawn", listing, third.previous, 5) == second
