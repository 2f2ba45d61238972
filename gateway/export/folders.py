"""Format `folders`: class folders under each arm, and `metadata.csv` beside them.

`original/`, `null_arm/` and `counterfactual/` are each what torchvision's ImageFolder reads; the whole is what
`datasets.load_dataset("imagefolder", data_dir=...)` reads, with the columns of `metadata.csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from gateway.export.archive import member_of, waiting
from gateway.export.files import Exporting, image_files
from gateway.export.names import cell
from shared.schemas.exports import ExportedImage

_COLUMNS = (
    "label", "arm", "id", "group", "null_id", "position", "source_name", "method", "ordinal", "seed", "factor",
    "from_value", "to_value", "caption", "new_caption", "verdict", "check", "reason", "lineage_digest",
)  # fmt: skip


def folders(export: Exporting) -> Iterator[bytes]:
    """The archive, piece by piece. Two columns for each model under test: what it predicted, and whether it flipped."""
    models = export.note.models
    with waiting() as table:
        text = io.TextIOWrapper(table, encoding="utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        model_columns = [f"{model} {what}" for model in models for what in ("predicted", "flipped")]
        rows.writerow(["file_name", *_COLUMNS, *map(cell, model_columns)])

        def listed(image: ExportedImage, path: str) -> None:
            rows.writerow([path, *(cell(getattr(image, name)) for name in _COLUMNS), *map(cell, _said(image, models))])

        yield from image_files(export, listed)
        text.detach()
        yield from member_of("metadata.csv", table)


def _said(image: ExportedImage, models: list[str]) -> Iterator[object]:
    predictions = {prediction.model: prediction for prediction in image.predictions}
    for model in models:
        prediction = predictions.get(model)
        yield prediction.predicted if prediction else None
        yield prediction.flipped if prediction else None
