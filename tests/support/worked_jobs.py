"""Finished jobs of any size, their rows written without a worker."""

from __future__ import annotations

from sqlalchemy import insert, update

from gateway.database.sessions import Sessions
from gateway.database.tables import Counterfactual, Job, Prediction, SourceImage
from gateway.methods import read_method
from tests.support.predictions import ranked
from tests.support.rows import add_job

EDITS = 5
LONG = "A red car on a street. It is a sunny day, and many people walk by. " * 4
TOP = [(f"a class with a long name {n}", 0.2) for n in range(5)]


def add_worked_job(sessions: Sessions, job_id: str, images: int) -> None:
    """A finished job: five edits of each image and a null arm, one model under test."""
    add_job(sessions, job_id, images, models=["m"], methods=[read_method("shifts", {})])
    counterfactuals, predictions = [], []
    for position in range(images):
        source = f"{job_id}-{position}"
        common = {"job_id": job_id, "source_image_id": source}
        opinion = {**common, "model": "m", "predicted": "car", "probability": 0.9}
        right = ranked("car", 1, 0.9, TOP)
        predictions.append({**opinion, **right, "id": f"{source}-prediction", "counterfactual_id": None})
        for ordinal in range(EDITS + 1):
            edit = ordinal < EDITS
            change = {"factor": "weather", "from_value": "sun", "to_value": f"w{ordinal}", "from_phrase": LONG}
            counterfactuals.append(
                {
                    **common,
                    "id": f"{source}-{ordinal}",
                    "position": position,
                    "method": "shifts",
                    "ordinal": ordinal,
                    "arm": "edit" if edit else "null",
                    "null_ordinal": EDITS if edit else None,
                    "seed": 0,
                    "changes": [{**change, "to_phrase": LONG}] if edit else [],
                    "caption": LONG,
                    "image_digest": "0" * 64,
                    "accepted": True,
                    "lineage": {"evaluations": 10, "prompt": LONG},
                }
            )
            right, name = ranked("car", 1, 0.8, TOP), f"{source}-{ordinal}"
            predictions.append({**opinion, **right, "id": f"{name}-prediction", "counterfactual_id": name})
    with sessions.begin() as session:
        session.execute(update(SourceImage).values(state="done", ground_truth="car"))
        session.execute(insert(Counterfactual), counterfactuals)
        session.execute(insert(Prediction), predictions)
        session.execute(update(Job).values(state="done"))
