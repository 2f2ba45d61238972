"""A small world in which a classifier is really trained, fails at night, and can be repaired; and a job's rows over it.

The class says which half of a picture is lit. Night is blue and swaps light and dark, so that a model of the
day is wrong there; dusk swaps them under less contrast, fog only takes contrast.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from sqlalchemy.orm import Session
from torch import Tensor
from transformers import ResNetConfig, ResNetForImageClassification
from transformers.models.convnext.image_processing_pil_convnext import ConvNextImageProcessorPil

from evaluator_service.repair_worker import Trainer
from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Owner, SourceImage
from gateway.intake.sources import NamedFile
from gateway.methods import read_method
from gateway.models_under_test.packages import Package, pack
from gateway.repairs.dispatch import check_repairs
from gateway.settings import Settings
from shared.media.images import CanonicalImage, Pixels, from_array
from shared.media.storage import ObjectStore, image_key, model_key
from shared.schemas.base import Kind
from shared.schemas.models import ModelSpec
from shared.schemas.repairs import RepairLease
from tests.support.job_counts import store_counts
from tests.support.snapshots import put_unsynced

CLASSES = ["car", "bus", "boat"]
SIDE = 32
CONTRAST = {"day": 1.0, "night": -1.0, "dusk": -0.6, "fog": 0.4}
TINT = {"day": (0, 0, 0), "night": (-60, -60, 40), "dusk": (-30, -50, 0), "fog": (20, 20, 20)}


def picture(label: str, value: str, seed: int) -> Pixels:
    """One picture, SIDE × SIDE × 3; the seed decides its noise and its lights."""
    random = np.random.default_rng(seed)
    light = np.full((SIDE, SIDE, 3), -1.0)
    halves: dict[str, Any] = {"car": np.s_[: SIDE // 2], "bus": np.s_[SIDE // 2 :], "boat": np.s_[:, : SIDE // 2]}
    light[halves[label]] = 1.0
    shade = (
        128
        + 60 * CONTRAST[value] * light
        + random.normal(0, 18, light.shape)
        + random.uniform(-15, 15, 3)
        + TINT[value]
    )
    return np.asarray(np.clip(shade, 0, 255), np.uint8)


def write_day_classifier(folder: Path, steps: int = 60) -> None:
    """A small ResNet, trained on days alone, in Hub layout."""
    torch.manual_seed(0)
    model = ResNetForImageClassification(
        ResNetConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            layer_type="basic",
            id2label=dict(enumerate(CLASSES)),
        )
    )
    processor = ConvNextImageProcessorPil(size={"shortest_edge": SIDE}, crop_pct=1.0)
    random, optimiser = np.random.default_rng(0), torch.optim.AdamW(model.parameters(), 5e-3)
    for step in range(steps):
        labels = random.integers(3, size=32)
        images = [picture(CLASSES[label], "day", 10_000 + 32 * step + place) for place, label in enumerate(labels)]
        values = processor(images=images, return_tensors="pt")["pixel_values"]
        loss = torch.nn.functional.cross_entropy(model(pixel_values=values).logits, torch.from_numpy(labels))
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)


def add_job(
    sessions: Sessions, store: ObjectStore, job: str = "made", *, per_class: int = 14, edits: bool = True
) -> None:
    """A finished job: source images by day, each with a null arm and edits to night, dusk and (every third) fog."""
    with sessions.begin() as session:
        add_finished_job(session, job, "classification", CLASSES)
        for position in range(per_class * len(CLASSES)):
            label = CLASSES[position % 3]
            images = {
                value: from_array(picture(label, value, position + 1_000 * place))
                for place, value in enumerate(values_of(position), 1)
            }
            source = from_array(picture(label, "day", position))
            for image in (source, *images.values()):
                keep(session, store, image)
            add_source(session, job, position, source, ground_truth=label)
            add_arms(session, job, position, images if edits else {"day": images["day"]})
        store_counts(session, job)


def values_of(position: int) -> list[str]:
    """How the source image at a position is rendered: by day is its null arm."""
    return ["day", "night", "dusk", *(["fog"] if position % 3 == 0 else [])]


def add_finished_job(session: Session, job: str, kind: Kind, classes: list[str]) -> None:
    """The job's row and its owner's."""
    session.merge(Owner(id=LOCAL_OWNER, name="local"))
    session.flush()
    session.add(
        Job(
            id=job,
            owner_id=LOCAL_OWNER,
            state="done",
            kind=kind,
            task_description="look at the picture",
            classes=classes,
            methods=[read_method("shifts", {})],
            profile="tiny",
        )
    )
    session.flush()


def add_source(session: Session, job: str, position: int, image: CanonicalImage, **columns: object) -> None:
    """The row of a source image, with its ground truth in `columns`."""
    session.add(
        SourceImage(
            id=f"{job}-{position}",
            job_id=job,
            position=position,
            digest=image.digest,
            state="done",
            generated=True,
            **columns,
        )
    )
    session.flush()


def add_arms(session: Session, job: str, position: int, images: Mapping[str, CanonicalImage]) -> None:
    """The rows of a source image's renderings by value."""
    session.add_all(
        row_of(job, position, ordinal, value, image.digest) for ordinal, (value, image) in enumerate(images.items())
    )


def keep(session: Session, store: ObjectStore, image: CanonicalImage) -> None:
    """Its object and its rows."""
    put_unsynced(store, image_key(image.digest), image.png)
    session.merge(Image(digest=image.digest, mode=image.mode, width=SIDE, height=SIDE, bytes=len(image.png)))
    session.flush()
    session.merge(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))


def row_of(job: str, position: int, ordinal: int, value: str, digest: str) -> Counterfactual:
    """A null arm (day) or an edit."""
    null = value == "day"
    change = {"factor": "weather", "from_phrase": "day", "to_phrase": value, "from_value": "day", "to_value": value}
    return Counterfactual(
        id=f"{job}-{position}-{ordinal}",
        job_id=job,
        source_image_id=f"{job}-{position}",
        position=position,
        method="shifts",
        ordinal=ordinal,
        arm="null" if null else "edit",
        null_ordinal=None if null else 0,
        seed=0,
        changes=[] if null else [change],
        factor=None if null else "weather",
        to_value=None if null else value,
        image_digest=digest,
        accepted=True,
    )


def keep_model(store: ObjectStore, folder: Path, name: str) -> Package:
    """Store the model as `POST /models` does, without an evaluator's examination."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    sent = [NamedFile(file, io.BytesIO(data)) for file, data in files.items()]
    with pack(sent, ModelSpec(name=name), 10**9) as package:
        store.put_file(model_key(package.digest, name), package.file)
    return package


def weights_in(package: bytes) -> dict[str, Tensor]:
    """The tensors of a packed model."""
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        content = archive.extractfile("model.safetensors")
        assert content is not None
        return load(content.read())


def work_off(sessions: Sessions, store: ObjectStore, settings: Settings, trainer: Trainer | None = None) -> None:
    """What worker and trainer do with the repairs that are there, in turn, until all are settled."""
    trained = (trainer or Trainer(store, "tiny", "cpu", beat_seconds=1)).work
    check_repairs(sessions, store, trained, settings)  # gives out, and the message is worked off at once
    check_repairs(sessions, store, _refuse, settings)  # takes in


def _refuse(lease: RepairLease) -> None:
    raise AssertionError(f"repair {lease.repair} was given out again")
