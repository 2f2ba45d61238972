"""Draw a job's first finding as one picture: source, null arm and counterfactual with their predictions.

Predictions of segmenters are painted over the images.
"""

from __future__ import annotations

import io
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageColor, ImageDraw, ImageFont

from contrafact.client import Client
from gateway.report.overlays import paint_png
from shared.schemas.effects import CellEffect
from shared.schemas.result_rows import CounterfactualView, ModelOpinion, PredictionView
from shared.schemas.results import ModelResults

SIDE, GAP, LINE, MARGIN = 256, 16, 22, 16
DETECTED = 0.5  # the least IoU of a detected class
LETTERS = 105  # per line below the pictures
INK, QUIET, RED = (28, 28, 30), (110, 110, 115), (176, 42, 32)


def draw_finding(client: Client, job: str, path: Path) -> Path | None:
    """Draw a flipped counterfactual of the job's first weakness to `path`; None when the job found no weakness."""
    metrics = client.results(job, {}, limit=1).metrics
    if metrics is None:
        return None
    weaknesses = [(results, effect) for results in metrics.results for effect in results.findings]
    for results, effect in weaknesses:
        cell = effect.cell
        where = {"model": results.model, "class": cell.label, "factor": cell.factor, "value": cell.value}
        views = client.counterfactuals(job, {**where, "verdict": "accepted", "flipped": "true"})
        view = next((view for view in views if view.image and view.null_image), None)
        if view is not None:
            _draw(client, view, results, effect).save(path)
            return path
    return None


def _draw(client: Client, view: CounterfactualView, results: ModelResults, effect: CellEffect) -> Image.Image:
    assert view.image is not None
    assert view.null_image is not None
    opinion = next(candidate for candidate in view.predictions if candidate.model == results.model)
    columns = [
        ("source image", view.source.image, opinion.original),
        ("null arm: rendered, caption unchanged", view.null_image, opinion.null_arm),
        ("counterfactual", view.image, opinion.counterfactual),
    ]
    width = 2 * MARGIN + len(columns) * SIDE + (len(columns) - 1) * GAP
    sentences = (_change(view), f"{results.model}: {effect.sentence}")
    below = [line for text in sentences for line in wrap(_strip_tags(text), LETTERS)]
    canvas = Image.new("RGB", (width, 2 * MARGIN + SIDE + (3 + len(below)) * LINE), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (title, digest, prediction) in enumerate(columns):
        left = MARGIN + number * (SIDE + GAP)
        picture = Image.open(io.BytesIO(_paint(client, digest, prediction, results)), formats=("PNG",)).convert("RGB")
        canvas.paste(picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS), (left, MARGIN))
        draw.text((left, MARGIN + SIDE + 6), title, fill=QUIET, font=ImageFont.load_default(13))
        text, colour = _verdict(prediction, opinion, view.source.ground_truth, effect.cell.label)
        draw.text((left, MARGIN + SIDE + 6 + LINE), text, fill=colour, font=ImageFont.load_default(17))
    top = MARGIN + SIDE + 6 + 5 * LINE // 2
    for line, text in enumerate(below):
        draw.text((MARGIN, top + line * LINE), text, fill=INK, font=ImageFont.load_default(15))
    return canvas


def _paint(client: Client, digest: str, prediction: PredictionView | None, results: ModelResults) -> bytes:
    image = client.image(digest)
    if prediction is None or prediction.segmentation is None or results.segmentation is None:
        return image
    colours = [ImageColor.getrgb(colour)[:3] for colour in results.segmentation.colours]
    return paint_png(image, client.image(prediction.segmentation.map), colours)


def _verdict(
    prediction: PredictionView | None, opinion: ModelOpinion, truth: str | None, label: str | None
) -> tuple[str, tuple[int, int, int]]:
    if prediction is None:
        return "", INK
    if (segmentation := prediction.segmentation) is not None:
        overlap = next(
            (overlap_of_class.iou for overlap_of_class in segmentation.classes if overlap_of_class.name == label),
            segmentation.mean_iou,
        )
        if overlap is None:
            return "", INK
        return f"{label or 'all classes'}: IoU {overlap:.0%}", INK if overlap >= DETECTED else RED
    right = prediction.predicted == (truth or (opinion.original.predicted if opinion.original else None))
    return (
        f"{'right' if right else 'WRONG'}: {prediction.predicted} {prediction.probability:.0%}",
        INK if right else RED,
    )


def _change(view: CounterfactualView) -> str:
    changes = ", ".join(f"“{change.from_phrase}” → “{change.to_phrase}”" for change in view.changes)
    return f"{changes}   in   {view.caption}"


def _strip_tags(text: str) -> str:
    """Text in the characters of Pillow's default font."""
    return text.replace("→", "to").replace("−", "-").replace("`", "")
