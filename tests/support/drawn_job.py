"""A finished job for tests of results and pages: counterfactuals of the renderer, random predictions.

No model was run here. The predictions are planted: `night-bus` fails on buses at night, `sound` errs at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from sqlalchemy import select, update

from gateway.database.columns import StoredChange
from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Owner, Prediction, SourceImage
from gateway.methods import read_method
from gateway.report.build import build_report
from shared.media.images import CanonicalImage, decode, from_array
from shared.media.storage import ObjectStore, image_key
from shared.schemas.jobs import JobState
from shared.seeds import derive_id, derive_seed
from tests.support.gateway_under_test import Gateway, serve_gateway
from tests.support.job_counts import store_counts
from tests.support.predictions import ranked
from tests.support.snapshots import Snapshot, put_unsynced, take_snapshot
from tinyworld.objects.captions import caption
from tinyworld.objects.render import render
from tinyworld.objects.world import CLASSES, EDIT_FACTOR, Scene, sample_scene

LABELS = ("bus", "car", "boat")
CHANGES = (("time", "night"), ("weather", "rain"), ("weather", "snow"), ("background", "beach"))
MODELS = ("night-bus", "sound")
REFUSED = {7: ("structure", "kept 41 % of the source's structure"), 13: ("label", "reads as truck")}


def add_drawn_job(
    sessions: Sessions, store: ObjectStore, job_id: str = "drawn", *, per_class: int = 16, state: JobState = "done"
) -> str:
    """Store a job of `per_class` source images of each of three classes, four edits each; return its id."""
    _drawn(job_id, per_class, state).restore(sessions, store)
    return job_id


def add_reported_job(sessions: Sessions, store: ObjectStore, *, per_class: int = 16) -> None:
    """Store the job `drawn` with its report."""
    _reported(per_class).restore(sessions, store)


@cache
def _drawn(job_id: str, per_class: int, state: JobState) -> Snapshot:
    return take_snapshot(lambda sessions, store: _draw_job(sessions, store, job_id, per_class, state))


@cache
def _reported(per_class: int) -> Snapshot:
    def fill(sessions: Sessions, store: ObjectStore) -> None:
        add_drawn_job(sessions, store, per_class=per_class)
        build_report(sessions, store, "drawn")

    return take_snapshot(fill)


@cache
def confirmable_job() -> Snapshot:
    """A finished job `drawn` whose model `m1` fails on buses at night, with its report."""

    def fill(sessions: Sessions, store: ObjectStore) -> None:
        add_drawn_job(sessions, store, per_class=14)
        with sessions.begin() as session:
            names = dict(zip(MODELS, ("m1", "m2"), strict=True))
            session.execute(update(Job).values(models=list(names.values())))
            for old, new in names.items():
                session.execute(update(Prediction).where(Prediction.model == old).values(model=new))
        build_report(sessions, store, "drawn", [])

    return take_snapshot(fill)


def _draw_job(sessions: Sessions, store: ObjectStore, job_id: str, per_class: int, state: JobState) -> None:
    with sessions.begin() as session:
        if session.get(Owner, LOCAL_OWNER) is None:
            session.add(Owner(id=LOCAL_OWNER, name="local"))
            session.flush()
        session.add(
            Job(
                id=job_id,
                owner_id=LOCAL_OWNER,
                state=state,
                task_description="classify the main thing in the picture",
                classes=list(CLASSES),
                methods=[read_method("dillema", {"counterfactuals_per_image": 4})],
                models=list(MODELS),
                profile="test fixture: drawn images, no model was run",
                seed=7,
            )
        )
    for position in range(per_class * len(LABELS)):
        _add_source(sessions, store, job_id, position, _scene(position)[1])
    with sessions.begin() as session:
        store_counts(session, job_id)


def add_night_buses(sessions: Sessions, store: ObjectStore, count: int, job_id: str = "drawn") -> list[str]:
    """Add finished source images of buses at night to a drawn job, without edits; return their ids."""
    scenes = [scene for index in range(40 * count) if (scene := sample_scene("demo", index)).label == "bus"]
    ids = []
    for number, scene in enumerate(scene.changed(time="night", weather="clear") for scene in scenes[:count]):
        image, position = _picture(scene), 10_000 + number
        source = SourceImage(
            id=derive_id("source image", job_id, position),
            job_id=job_id,
            position=position,
            digest=image.digest,
            file_name=f"bus/night-{number:03}.png",
            ground_truth="bus",
            state="done",
        )
        ids.append(source.id)
        store.put(image_key(image.digest), image.png)
        with sessions.begin() as session:
            session.merge(Image(digest=image.digest, width=128, height=128, bytes=len(image.png)))
            session.flush()
            session.merge(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))
            session.add(source)
            session.flush()
            session.add_all(_prediction(source, None, scene, model) for model in MODELS)
    return ids


def add_second_changes(sessions: Sessions, store: ObjectStore, job_id: str = "drawn") -> None:
    """Give each accepted edit of a drawn job another change before its own one, to a colour that few edits share.

    The report is built again.
    """
    with sessions.begin() as session:
        session.get_one(Job, job_id).methods = [read_method("dillema", {"edits_per_counterfactual": 2})]
        edits = select(Counterfactual).where(Counterfactual.job_id == job_id, Counterfactual.arm == "edit")
        for row in session.scalars(edits.where(Counterfactual.accepted)):
            colour = f"colour {row.position // len(LABELS) % 7}"
            phrases: StoredChange = {
                "factor": "adjective",
                "from_phrase": "red",
                "to_phrase": colour,
                "from_value": "",
                "to_value": colour,
            }
            row.changes = [phrases, *row.changes]
            row.factor = row.from_value = row.to_value = None  # as in all edits with several changes
    build_report(sessions, store, job_id, [])


@contextmanager
def serve_drawn_job(directory: Path, database_url: str | None = None, *, per_class: int) -> Iterator[Gateway]:
    """A gateway with the finished job `drawn` and its report."""
    with serve_gateway(directory, database_url) as gateway:
        add_reported_job(gateway.context.sessions, gateway.context.store, per_class=per_class)
        yield gateway


@cache
def _scene(position: int) -> tuple[int, Scene]:
    """The next scene by day of the class whose turn it is after that of the position before, with its number."""
    index = _scene(position - 1)[0] + 1 if position else 0
    while (scene := sample_scene("demo", index)).label != LABELS[position % 3] or scene.time == "night":
        index += 1
    return index, scene


@dataclass(frozen=True)
class _Arm:
    """A counterfactual's row and image, if it was rendered, and the scene that the image shows."""

    row: Counterfactual
    image: CanonicalImage | None
    scene: Scene


def _add_source(sessions: Sessions, store: ObjectStore, job_id: str, position: int, scene: Scene) -> None:
    image = _picture(scene)
    source = SourceImage(
        id=derive_id("source image", job_id, position),
        job_id=job_id,
        position=position,
        digest=image.digest,
        file_name=f"{scene.label}/{position:03}.png",
        ground_truth=scene.label,
        state="done",
    )
    edits = [(field, value) for field, value in CHANGES if getattr(scene, field) != value]
    arms = [
        _null_arm(source, scene, ordinal=len(edits)),
        *(_edit(source, scene, ordinal, field, value, len(edits)) for ordinal, (field, value) in enumerate(edits)),
        _refused_edit(source, scene, ordinal=len(edits) + 1),
    ]
    predictions = [_prediction(source, None, scene, model) for model in MODELS]
    predictions += [_prediction(source, arm.row.id, arm.scene, m) for arm in arms if arm.row.accepted for m in MODELS]
    stored = {image.digest: image for image in (image, *(arm.image for arm in arms if arm.image))}
    for digest, shown in stored.items():
        put_unsynced(store, image_key(digest), shown.png)
    with sessions.begin() as session:
        there = set(session.scalars(select(Image.digest).where(Image.digest.in_(stored))))
        new = [shown for digest, shown in stored.items() if digest not in there]
        images = [Image(digest=shown.digest, width=128, height=128, bytes=len(shown.png)) for shown in new]
        owned = [OwnedImage(owner_id=LOCAL_OWNER, digest=shown.digest) for shown in new]
        for rows in (images, owned, [source], [arm.row for arm in arms], predictions):
            session.add_all(rows)
            session.flush()


@cache  # jobs of any name and size share their scenes
def _picture(scene: Scene, noise: int | None = None) -> CanonicalImage:
    """A scene, with a little noise of this seed if there is one."""
    if noise is None:
        return from_array(render(scene).image)
    added = np.random.default_rng(noise).normal(0, 4, (128, 128, 3))
    return from_array(np.clip(decode(_picture(scene).png) + added, 0, 255).astype(np.uint8))


def _null_arm(source: SourceImage, scene: Scene, ordinal: int) -> _Arm:
    """The source image with a little noise."""
    image = _picture(scene, noise=source.position)
    row = _row(source, ordinal, "null", arm="null", image_digest=image.digest, accepted=True)
    return _Arm(row, image, scene)


def _edit(source: SourceImage, scene: Scene, ordinal: int, field: str, value: str, null_ordinal: int) -> _Arm:
    """The scene with one field changed; checks reject every few."""
    changed = scene.changed(**{field: value})
    image = _picture(changed)
    check, reason = REFUSED.get((4 * source.position + ordinal) % 17, ("", ""))
    before = str(getattr(scene, field))
    factor = EDIT_FACTOR[field]
    values = {"from_phrase": before, "to_phrase": value, "from_value": before, "to_value": value}
    row = _row(
        source,
        ordinal,
        field,
        value,
        arm="edit",
        null_ordinal=null_ordinal,
        changes=[{"factor": factor, **values}],
        factor=factor,
        from_value=before,
        to_value=value,
        caption=caption(scene, source.position),
        new_caption=caption(changed, source.position),
        image_digest=image.digest,
        accepted=not check,
        check=check,
        reason=reason,
        scores={"structure": 0.91},
        lineage={"evaluations": 40},
    )
    return _Arm(row, image, changed)


def _refused_edit(source: SourceImage, scene: Scene, ordinal: int) -> _Arm:
    """An edit that a check of words rejects before it is rendered."""
    words = caption(scene, source.position)
    reason = "the edit touches the class words"
    row = _row(
        source,
        ordinal,
        "refused",
        arm="edit",
        accepted=False,
        check="class words",
        reason=reason,
        caption=words,
        new_caption=words,
    )
    return _Arm(row, None, scene)


def _row(source: SourceImage, ordinal: int, *name: str, **columns: object) -> Counterfactual:
    return Counterfactual(
        id=derive_id(source.id, *name),
        job_id=source.job_id,
        source_image_id=source.id,
        position=source.position,
        ordinal=ordinal,
        method="dillema",
        seed=1,
        **columns,
    )


def _prediction(source: SourceImage, row_id: str | None, scene: Scene, model: str) -> Prediction:
    """A random prediction: right 19 times of 20, except for the planted weakness."""
    random = np.random.default_rng(derive_seed(source.job_id, row_id or source.id, model))
    weak = model == "night-bus" and scene.label == "bus" and scene.time == "night"
    right = random.random() < (0.1 if weak else 0.95)
    wrong = "truck" if weak else str(random.choice([name for name in CLASSES if name != scene.label]))
    first, second = (scene.label, wrong) if right else (wrong, scene.label)
    most = float(random.uniform(0.6, 0.97))
    others = [name for name in CLASSES if name not in (first, second)][:3]
    top = [(first, most), (second, (1 - most) * 0.7), *((name, (1 - most) * 0.05) for name in others)]
    original = np.random.default_rng(derive_seed(source.job_id, source.id, model)).random() < 0.95
    return Prediction(
        id=derive_id("lot", row_id or source.id, model),
        job_id=source.job_id,
        source_image_id=source.id,
        counterfactual_id=row_id,
        model=model,
        predicted=first,
        probability=most,
        flipped=None if row_id is None else right != original,
        **ranked(scene.label, 1 if right else 2, most if right else (1 - most) * 0.7, top),
    )
