"""Labelled counterfactuals with the scores and signals of the checks, for fits and measurements.

A label of `research.judges.label` belongs to the record whose image has its digest. Signals are computed once per
folder and kept in its `signals.jsonl`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict

from evaluator_service.models_under_test.kinds.segmentation import ImageSegmenter
from evaluator_service.shapes import shapes_reply
from gateway.analysis.calibration import JudgedSample
from gateway.methods.counterfactual import Change, Edit, Factor
from gateway.methods.text_checks import differing_part
from gateway.methods.validity import caption_signals
from research.judges.label import Label, image_valid
from research.judges.records import Record, read_picture, records
from research.system.spawn_services import spawn_services
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.caption import CaptionRequest
from shared.schemas.evaluation import ShapesRequest
from shared.schemas.validity import EditKind

SIGNALS_FILE = "signals.jsonl"
AT_ONCE = 4  # images, so that they share batches


class RecordSignals(BaseModel):
    """The signals of one record: a line of `signals.jsonl`. `caption`: the new caption of its image."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    caption: str
    scores: dict[str, float]


class LabelledEdit(NamedTuple):
    """A labelled edit: its record, whether it is valid (class kept and edit shown), and all scores of its image."""

    record: Record
    label: Label
    valid: bool
    scores: dict[str, float]

    @property
    def kind(self) -> EditKind:
        """The factor, value and class of the edit."""
        return EditKind((self.record.factor,), (self.record.to_value,), (self.record.label,))


def labelled_edits(
    folders: Sequence[Path], labels: Sequence[Label], signals_by: str | None = None
) -> list[LabelledEdit]:
    """The edits of folders that somebody labelled and could judge. Raises ValueError without any.

    `signals_by`: the profile whose captioner and segmenter give them signals; None: they have the scores of the scorer
    alone. An image with several labels has the first one.
    """
    by_image: dict[str, Label] = {}
    for label in labels:
        by_image.setdefault(label.image, label)
    edits = []
    for folder in folders:
        labelled_records = [
            (record, by_image.get(digest_of(folder / record.image))) for record in records(folder) if record.image
        ]
        judged = [(record, label) for record, label in labelled_records if label is not None and record.arm == "edit"]
        decided = [(record, label) for record, label in judged if image_valid(label) is not None]
        signals = {} if signals_by is None else signals_of_records(folder, [row for row, _ in decided], signals_by)
        more = {name: signal.scores for name, signal in signals.items()}
        edits += [
            LabelledEdit(record, label, bool(image_valid(label)), {**record.scores, **more.get(record.id, {})})
            for record, label in decided
        ]
    if not edits:
        raise ValueError("none of these images is labelled; run python -m research.judges.label on the folders first")
    return edits


def digest_of(path: Path) -> str:
    """The digest of a picture by which labels name it."""
    return hashlib.sha256(read_picture(path).tobytes()).hexdigest()


def signals_of_records(folder: Path, edits: Sequence[Record], profile: str) -> dict[str, RecordSignals]:
    """The signals of records by id; those that `signals.jsonl` lacks are computed and added to it."""
    path = folder / SIGNALS_FILE
    lines = path.read_text().splitlines() if path.exists() else []
    stored = {signals.id: signals for signals in map(RecordSignals.model_validate_json, lines)}
    missing = [record for record in edits if record.id not in stored]
    if missing:
        objects = object_scores(folder, missing, profile)
        captions = _captions(folder, missing, profile)
        with path.open("a") as file:
            for record, caption, mentions in zip(missing, captions, objects, strict=True):
                scores = {**mentions, **caption_signals(caption, edit_of(record), record.label)}
                stored[record.id] = RecordSignals(id=record.id, caption=caption, scores=scores)
                file.write(stored[record.id].model_dump_json() + "\n")
    return stored


def edit_of(record: Record) -> Edit:
    """The edit of a record; its phrases are where the captions differ."""
    old, new = differing_part(record.caption, record.new_caption)
    factor: Factor = record.factor  # type: ignore[assignment]
    change = Change(factor, old, new, record.from_value, record.to_value)
    return Edit((change,), record.caption, record.new_caption)


def _captions(folder: Path, edits: Sequence[Record], profile: str) -> list[str]:
    with spawn_services(profile, ["caption_service"]) as services, ThreadPoolExecutor(AT_ONCE) as pool:
        services.revision("caption_service")  # wait for it here, not in every thread

        def caption(record: Record) -> str:
            image = ImagePayload(png=(folder / record.image).read_bytes())
            return services.caption(CaptionRequest(images=[image])).captions[0]

        return list(pool.map(caption, edits))


def object_scores(folder: Path, edits: Sequence[Record], profile: str) -> list[dict[str, float]]:
    """The score `object` by the segmenter that the profile's generator protects objects with, label "object"."""
    weights = load_profile(profile).diffusion.segmenter
    if weights is None:
        return [{} for _ in edits]
    segmenter = ImageSegmenter(weights, device="cpu")
    places = [0 if name == "object" else None for name in segmenter.classes]
    scores: list[dict[str, float]] = []
    for record in edits:
        images = [folder / record.source, folder / record.image]
        maps = [np.asarray(label_map, np.uint8) for label_map in segmenter.run([read_picture(path) for path in images])]
        payloads = [ImagePayload(png=path.read_bytes()) for path in images]
        request = ShapesRequest(source=payloads[0], images=payloads[1:], classes=[record.label])
        (outcome,) = shapes_reply(request, maps, places).outcomes
        scores.append({"object": outcome.classes[0]} if outcome.classes else {})
    return scores


def judged_sample(edits: Sequence[LabelledEdit], sources: Sequence[str]) -> JudgedSample:
    """Labelled edits as arrays; `sources` names the source image of each."""
    return JudgedSample(
        valid=np.array([edit.valid for edit in edits], np.bool_),
        accepted=np.array([edit.record.accepted for edit in edits], np.bool_),
        group=np.unique(np.array(sources, np.str_), return_inverse=True)[1].astype(np.int64),
        factors=[(edit.record.factor,) for edit in edits],
        labels=[edit.record.label for edit in edits],
    )
