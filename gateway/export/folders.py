"""Format `folders`: class folders under each arm, and `metadata.csv` beside them.

torchvision's ImageFolder reads each of `original/`, `null_arm/` and `counterfactual/`.
`datasets.load_dataset("imagefolder", data_dir=...)` reads the whole folder with the columns of `metadata.csv`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from gateway.export.archive import member_of, temporary_member
from gateway.export.files import Exporting, image_files
from shared.characters import csv_cell
from shared.schemas.exports import ExportedImage

_COLUMNS = (
    "label", "arm", "id", "group", "null_id", "position", "source_name", "method", "ordinal", "seed", "factor",
    "from_value", "to_value", "caption", "new_caption", "verdict", "check", "reason", "lineage_digest", "source_digest",
    "digital_source_type",
)  # fmt: skip


def folders(export: Exporting) -> Iterator[bytes]:
    """The archive as a stream of chunks. Each model under test has two columns: prediction and flip."""
    models = export.note.models
    with temporary_member() as table:
        text = io.TextIOWrapper(table, encoding="utf-8", newline="", write_through=True)
        rows = csv.writer(text, lineterminator="\n")
        model_columns = [f"{model} {field}" for model in models for field in ("predicted", "flipped")]
        rows.writerow(["file_name", *_COLUMNS, *map(csv_cell, model_columns)])

        def add_image(image: ExportedImage, path: str) -> None:
            columns = [*(getattr(image, name) for name in _COLUMNS), *_predictions(image, models)]
            rows.writerow([path, *map(csv_cell, columns)])

        yield from image_files(export, add_image)
        text.detach()
        yield from member_of("metadata.csv", table)


def _predictions(image: ExportedImage, models: list[str]) -> Iterator[object]:
    predictions = {prediction.model: prediction for prediction in image.predictions}
    for model in models:
        prediction = predictions.get(model)
        yield prediction.predicted if prediction else None
        yield prediction.flipped if prediction else None
