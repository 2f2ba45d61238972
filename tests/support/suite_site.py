"""A gateway's finished job to freeze, and predictions of its runs in a worker's stead."""

from __future__ import annotations

import numpy as np
from sqlalchemy import select, update
from typer.testing import CliRunner, Result

from contrafact.cli import app
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Prediction, SourceImage
from gateway.methods import read_method
from shared.media.images import from_array
from shared.media.storage import image_key
from shared.seeds import derive_id
from tests.support.gateway_under_test import Gateway
from tests.support.predictions import ranked

SOURCES = 40  # of each class
LABELS = ("bus", "car")


def add_job(gateway: Gateway) -> None:
    """A finished job of 80 source images, each with a null arm and an edit to night. No model was run."""
    image = from_array(np.zeros((8, 8, 3), np.uint8))
    gateway.context.store.put(image_key(image.digest), image.png)
    methods = [read_method("dillema", {})]
    with gateway.context.sessions.begin() as session:
        session.add(Image(digest=image.digest, width=8, height=8, bytes=len(image.png)))
        session.add(
            Job(id="made", owner_id=LOCAL_OWNER, state="done", task_description="name it", methods=methods, profile="p")
        )
        session.flush()
        session.add(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))
        for n in range(2 * SOURCES):
            common = {"job_id": "made", "position": n}
            session.add(
                SourceImage(id=f"s{n}", digest=image.digest, ground_truth=LABELS[n % 2], state="done", **common)
            )
            session.flush()
            columns = {
                **common,
                "source_image_id": f"s{n}",
                "method": "dillema",
                "seed": 1,
                "image_digest": image.digest,
            }
            change = {"factor": "weather", "from_phrase": "", "to_phrase": "", "from_value": "", "to_value": "night"}
            session.add(Counterfactual(id=f"n{n}", ordinal=1, arm="null", accepted=True, **columns))
            session.add(
                Counterfactual(
                    id=f"c{n}", ordinal=0, arm="edit", null_ordinal=1, changes=[change], factor="weather",
                    to_value="night", accepted=True, **columns,
                )
            )  # fmt: skip


def predict(gateway: Gateway, run: str, weak: bool) -> None:
    """Answers in a worker's stead: right, except for one bus in ten, and if weak for eight buses in ten at night."""
    with gateway.context.sessions.begin() as session:
        model = session.get_one(Job, run).models[0]
        for source in session.scalars(select(SourceImage).where(SourceImage.job_id == run)).all():
            counterfactuals = session.scalars(
                select(Counterfactual).where(Counterfactual.source_image_id == source.id)
            ).all()
            for row in (None, *counterfactuals):
                turn, edited = source.position // 2 % 10, row is not None and row.arm == "edit"
                right = source.ground_truth == "car" or turn >= (8 if weak and edited else 1)
                session.add(
                    Prediction(
                        id=derive_id(row.id if row else source.id, model),
                        job_id=run,
                        source_image_id=source.id,
                        counterfactual_id=row.id if row else None,
                        model=model,
                        predicted=source.ground_truth if right else "boat",
                        probability=0.9,
                        **ranked(source.ground_truth, 1 if right else 2, 0.9 if right else 0.05),
                    )
                )
        session.execute(update(SourceImage).where(SourceImage.job_id == run).values(state="done"))
        session.execute(update(Job).where(Job.id == run).values(state="done"))


def contrafact(url: str, *arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"CONTRAFACT_URL": url})
    assert result.exit_code == code, result.output
    return result
