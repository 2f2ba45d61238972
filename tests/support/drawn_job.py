"""A finished job for tests of results and pages: renderer counterfactuals as images, drawn lots as predictions.

No model was run here. What the lots say is planted: `night-bus` fails on buses at night, `sound` errs at random.
"""

from __future__ import annotations

import numpy as np

from gateway.database.sessions import Sessions
from gateway.database.tables import LOCAL_OWNER, Counterfactual, Image, Job, OwnedImage, Owner, Prediction, SourceImage
from gateway.methods import read_method
from shared.images import CanonicalImage, from_array
from shared.schemas.jobs import JobState
from shared.seeds import derive_id, derive_seed
from shared.storage import ObjectStore, image_key
from tests.support.job_counts import store_counts
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
    index = 0
    for position in range(per_class * len(LABELS)):
        while (scene := sample_scene("demo", index)).label != LABELS[position % 3] or scene.time == "night":
            index += 1
        index += 1
        _add_source(sessions, store, job_id, position, scene)
    with sessions.begin() as session:
        store_counts(session, job_id)
    return job_id


def _add_source(sessions: Sessions, store: ObjectStore, job_id: str, position: int, scene: Scene) -> None:
    source_id = derive_id("source image", job_id, position)
    words = caption(scene, position)
    edits = [(field, value) for field, value in CHANGES if getattr(scene, field) != value]
    drawn = render(scene).image
    images = {source_id: from_array(drawn)}
    noise = np.random.default_rng(position).normal(0, 4, (128, 128, 3))
    null = from_array(np.clip(drawn + noise, 0, 255).astype(np.uint8))
    null_id = derive_id(source_id, "null")
    images[null_id] = null
    rows = [_row(job_id, source_id, position, len(edits), null_id, arm="null", image_digest=null.digest, accepted=True)]
    lots = [_lot(job_id, source_id, None, scene, model) for model in MODELS]
    lots += [_lot(job_id, source_id, null_id, scene, model) for model in MODELS]
    for ordinal, (field, value) in enumerate(edits):
        changed = scene.changed(**{field: value})
        row_id = derive_id(source_id, field, value)
        images[row_id] = from_array(render(changed).image)
        check, reason = REFUSED.get((4 * position + ordinal) % 17, ("", ""))
        change = {
            "factor": EDIT_FACTOR[field],
            "from_phrase": str(getattr(scene, field)),
            "to_phrase": value,
            "from_value": str(getattr(scene, field)),
            "to_value": value,
        }
        rows.append(
            _row(
                job_id,
                source_id,
                position,
                ordinal,
                row_id,
                arm="edit",
                null_ordinal=len(edits),
                changes=[change],
                factor=change["factor"],
                from_value=change["from_value"],
                to_value=value,
                caption=words,
                new_caption=caption(changed, position),
                image_digest=images[row_id].digest,
                accepted=not check,
                check=check,
                reason=reason,
                scores={"structure": 0.91},
                lineage={"evaluations": 40},
            )
        )
        if not check:
            lots += [_lot(job_id, source_id, row_id, changed, model) for model in MODELS]
    rows.append(
        _row(
            job_id,
            source_id,
            position,
            len(edits) + 1,
            derive_id(source_id, "refused"),
            arm="edit",
            accepted=False,
            check="class words",
            reason="the edit touches the class words",
            caption=words,
            new_caption=words,
        )
    )
    _store(
        sessions,
        store,
        job_id,
        SourceImage(
            id=source_id,
            job_id=job_id,
            position=position,
            digest=images[source_id].digest,
            file_name=f"{scene.label}/{position:03}.png",
            ground_truth=scene.label,
            state="done",
        ),
        images,
        rows,
        lots,
    )


def _store(
    sessions: Sessions,
    store: ObjectStore,
    job_id: str,
    source: SourceImage,
    images: dict[str, CanonicalImage],
    rows: list[Counterfactual],
    lots: list[Prediction],
) -> None:
    with sessions.begin() as session:
        for image in images.values():
            store.put(image_key(image.digest), image.png)
            session.merge(Image(digest=image.digest, width=128, height=128, bytes=len(image.png)))
            session.flush()
            session.merge(OwnedImage(owner_id=LOCAL_OWNER, digest=image.digest))
        session.add(source)
        session.flush()
        session.add_all(rows)
        session.flush()
        session.add_all(lots)


def _row(job_id: str, source_id: str, position: int, ordinal: int, row_id: str, **columns: object) -> Counterfactual:
    return Counterfactual(
        id=row_id,
        job_id=job_id,
        source_image_id=source_id,
        position=position,
        ordinal=ordinal,
        method="dillema",
        seed=1,
        **columns,
    )


def _lot(job_id: str, source_id: str, row_id: str | None, scene: Scene, model: str) -> Prediction:
    """A prediction by lot: right 19 times of 20, but for the planted weakness."""
    random = np.random.default_rng(derive_seed(job_id, row_id or source_id, model))
    weak = model == "night-bus" and scene.label == "bus" and scene.time == "night"
    right = random.random() < (0.1 if weak else 0.95)
    wrong = "truck" if weak else str(random.choice([name for name in CLASSES if name != scene.label]))
    first, second = (scene.label, wrong) if right else (wrong, scene.label)
    most = float(random.uniform(0.6, 0.97))
    others = [name for name in CLASSES if name not in (first, second)][:3]
    top = [(first, most), (second, (1 - most) * 0.7), *((name, (1 - most) * 0.05) for name in others)]
    original = np.random.default_rng(derive_seed(job_id, source_id, model)).random() < 0.95
    return Prediction(
        id=derive_id("lot", row_id or source_id, model),
        job_id=job_id,
        source_image_id=source_id,
        counterfactual_id=row_id,
        model=model,
        predicted=first,
        probability=most,
        ground_truth_probability=most if right else (1 - most) * 0.7,
        rank=1 if right else 2,
        flipped=None if row_id is None else right != original,
        top=[{"class": name, "probability": probability} for name, probability in top],
    )
