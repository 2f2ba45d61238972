"""Filters by what a segmenter and a classifier predicted, on both databases, against the rows themselves."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.columns import StoredChange
from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual, Job, Prediction
from gateway.results.counterfactuals import matching
from gateway.results.facets import ChangedValue, load_facets
from gateway.results.filters import Filters
from shared.media.label_maps import unpack_counts
from shared.media.storage import DirectoryStore
from shared.schemas.masks import ALL_CLASSES
from tests.support.drawn_job import MODELS, add_drawn_job
from tests.support.predictions import confusion_of
from tests.support.segmented_job import CLASSES, MODEL, add_segmented_job

JOB = "segmented"


def ids(session: Session, job: str, **fields: object) -> set[str]:
    return set(session.scalars(matching(job, Filters.model_validate(fields)).with_only_columns(Counterfactual.id)))


def test_errors_of_a_detector_by_size(sessions: Sessions, tmp_path: Path) -> None:
    """Areas are those of the truth where it has them, as COCO's; a box beside the objects has its own."""
    add_segmented_job(sessions, DirectoryStore(tmp_path), sources=9)
    with sessions.begin() as session:
        edits = session.scalars(select(Counterfactual.id).where(Counterfactual.arm == "edit").limit(3)).all()
        large, small = {"box": [0, 0, 100.5, 100], "label": "car"}, {"box": [0, 0, 100, 100], "label": "car", "area": 9}
        details = [
            {"objects": [{**large, "outcome": "missed"}, {**small, "outcome": "found"}], "extras": []},
            {"objects": [{**small, "outcome": "misclassified"}], "extras": []},
            {"objects": [], "extras": [{**large, "score": 0.5, "why": "hallucination"}]},
        ]
        for edit, detected in zip(edits, details, strict=True):
            row = session.scalars(select(Prediction).where(Prediction.counterfactual_id == edit)).one()
            row.detail = {**row.detail, "detected": detected}  # type: ignore[dict-item]
    missed, misclassified, hallucinating = ({edit} for edit in edits)
    with sessions() as session:
        assert ids(session, JOB, error="missed") == ids(session, JOB, error="missed", size="large") == missed
        assert ids(session, JOB, error="missed", size="small") == ids(session, JOB, size="medium") == set()
        assert ids(session, JOB, size="small") == ids(session, JOB, error="misclassified") == misclassified
        assert ids(session, JOB, error="hallucination", size="large", model=MODEL) == hallucinating
        assert ids(session, JOB, error="missed", on="original") == set()


def test_images_with_pixels_of_one_class_taken_for_another(sessions: Sessions, tmp_path: Path) -> None:
    add_segmented_job(sessions, DirectoryStore(tmp_path), sources=9)
    with sessions() as session:
        predictions = session.scalars(select(Prediction)).all()
        by_image = {row.counterfactual_id or row.source_image_id: row for row in predictions}
        edits = session.scalars(select(Counterfactual).where(Counterfactual.arm == "edit")).all()
        images = {edit.id: (edit.id, edit.source_image_id, f"{edit.source_image_id}-0") for edit in edits}
        found = 0
        for place, arm in enumerate(("counterfactual", "original", "null")):
            counts = {id: unpack_counts(confusion_of(by_image[names[place]]), 4) for id, names in images.items()}
            for row in range(4):
                for column in range(5):
                    pixels = [CLASSES[row], *CLASSES[column : column + 1]]
                    expected = {id for id, table in counts.items() if table[row, column]}
                    assert ids(session, JOB, model=MODEL, on=arm, pixels=pixels) == expected, (arm, pixels)
                    found += bool(expected)
        assert found > 30
        assert ids(session, JOB, pixels=["zebra"]) == ids(session, JOB, pixels=["sky", "zebra"]) == set()
        scored = {id for id in images if by_image[id].scores}
        assert ids(session, JOB, model=MODEL, scored=ALL_CLASSES) == scored != set(images)
        for name in CLASSES:
            expected = {id for id in scored if name in by_image[id].scores}
            assert ids(session, JOB, scored=name) == expected != set(), name
        assert ids(session, JOB, scored="tra") == set()
        unchecked = {edit.id for edit in edits if "shapes" not in edit.scores}
        assert ids(session, JOB, unchecked="shapes") == unchecked != set()
        lost = {edit.id for edit in edits if edit.null_check == "structure"}
        assert ids(session, JOB, arm_check="structure") == lost != set()


@pytest.mark.parametrize("arm", ["counterfactual", "original", "null"])
def test_images_by_the_confidence_of_a_model_on_an_arm(sessions: Sessions, tmp_path: Path, arm: str) -> None:
    add_drawn_job(sessions, DirectoryStore(tmp_path), per_class=3)
    with sessions() as session:
        rows = session.scalars(select(Prediction).where(Prediction.model == "sound")).all()
        by_image = {row.counterfactual_id or row.source_image_id: row for row in rows}
        accepted = select(Counterfactual).where(Counterfactual.arm == "edit", Counterfactual.accepted)
        nulls = select(Counterfactual).where(Counterfactual.arm == "null")
        null_of = {null.source_image_id: null.id for null in session.scalars(nulls)}
        seen = {
            edit.id: by_image[
                {"counterfactual": edit.id, "original": edit.source_image_id}.get(arm, null_of[edit.source_image_id])
            ]
            for edit in session.scalars(accepted)
        }
        common = {"model": "sound", "on": arm, "verdict": "accepted"}
        sure = {id for id, row in seen.items() if row.probability >= 0.8}
        assert ids(session, "drawn", **common, confidence_from=0.8) == sure != set()
        assert ids(session, "drawn", **common, confidence_below=0.8) == set(seen) - sure != set()
        others = {id for id, row in seen.items() if row.predicted not in ("car", "bus")}
        assert ids(session, "drawn", **common, other_than=["car", "bus"]) == others != set()


def test_an_edit_with_several_changes_matches_each_of_them(sessions: Sessions, tmp_path: Path) -> None:
    add_drawn_job(sessions, DirectoryStore(tmp_path), per_class=2)
    red: StoredChange = {
        "factor": "adjective",
        "from_phrase": "",
        "to_phrase": "red",
        "from_value": "",
        "to_value": "red",
    }
    with sessions.begin() as session:
        edits = session.scalars(select(Counterfactual).where(Counterfactual.to_value == "snow")).all()
        for edit in edits:
            edit.changes = [red, *edit.changes]
            edit.factor = edit.from_value = edit.to_value = None
        expected = {edit.id for edit in edits}
    with sessions() as session:
        assert ids(session, "drawn", factor="adjective", value="red") == expected != set()
        assert ids(session, "drawn", factor="weather", value="snow") == expected
        assert ids(session, "drawn", factor="weather", value="red") == set(), "factor and value are of one change"
        models = session.get_one(Job, "drawn").models
        assert models == list(MODELS)
        facets = load_facets(session, "drawn", Filters(), models)
        for change, number in facets.changes.items():
            side = {"value" if change.direction == "to" else "from": change.value}
            assert number == len(ids(session, "drawn", factor=change.factor, **side)), change
        assert facets.changes[ChangedValue("adjective", "red", "to")] == len(expected)
