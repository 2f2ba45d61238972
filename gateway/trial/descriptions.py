"""What a reply of a service says, in one line, what is wrong with it, and its pictures."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from shared.images import decode
from shared.schemas.base import Contract, ImagePayload
from shared.schemas.caption import CaptionReply
from shared.schemas.compositions import ComposeReply
from shared.schemas.corruptions import CorruptReply
from shared.schemas.diffusion import EditReply, RenderReply
from shared.schemas.evaluation import (
    EmbedReply,
    EmbedTextsReply,
    JudgeReply,
    PredictReply,
    SegmentReply,
    ShapesReply,
    StructureReply,
)
from shared.schemas.instructions import InstructReply
from shared.schemas.language import GenerateReply

FLAT = 2.0  # grey values (0 … 255): a picture whose standard deviation is below shows nothing
FEW_WORDS = 3
LARGEST_CLASSES = 4
HALF_PRECISION = (
    'set `dtype` of [diffusion.base] to "bfloat16", or "float32", since half precision overflows in some autoencoders'
)
Pictures = Sequence[ImagePayload | None]


def describe(reply: Contract) -> tuple[str, str]:
    """What a reply says, in one line, and what is wrong with it ("": nothing)."""
    match reply:
        case CaptionReply(captions=captions):
            is_short = any(len(caption.split()) < FEW_WORDS for caption in captions)
            fault = "a caption of fewer than three words leaves nothing to change: try another captioner"
            return " | ".join(captions), fault if is_short else ""
        case GenerateReply(text=text, attempts=attempts):
            fault = "" if attempts == 1 else "the first reply did not fit its schema, so the model was asked twice"
            return " ".join(text.split())[:300], fault
        case PredictReply(classes=classes, probabilities=[row, *_]):
            best = max(range(len(row)), key=row.__getitem__)
            return f"{classes[best]} ({row[best]:.0%})", "" if math.isfinite(row[best]) else "it is NaN or infinity"
        case SegmentReply(classes=classes, maps=[first, *_]):
            values, counts = np.unique(decode(first.png, "L"), return_counts=True)
            order = np.argsort(-counts)[:LARGEST_CLASSES]
            return ", ".join(f"{classes[values[at]]} {counts[at] / counts.sum():.0%}" for at in order), ""
        case RenderReply() | EditReply() | InstructReply() | ComposeReply() | CorruptReply():
            return _describe_pictures(reply)
        case _:
            return _describe_check(reply), ""


def _describe_pictures(reply: RenderReply | EditReply | InstructReply | ComposeReply | CorruptReply) -> tuple[str, str]:
    match reply:
        case RenderReply(images=images):
            return _images("rendered", images, reply.evaluations)
        case EditReply(images=rows):
            return _images("edited", [image for row in rows for image in row], reply.evaluations.edit)
        case InstructReply(images=images, refusals=refusals):
            outcome, fault = _images("edited", _not_refused(images, refusals), reply.evaluations)
        case ComposeReply(images=images, refusals=refusals):
            outcome, fault = _images("composed", _not_refused(images, refusals))
        case CorruptReply(images=images):
            return _images("corrupted", images)
    reasons = ", ".join(dict.fromkeys(filter(None, refusals)))
    if all(refusals):
        return "every image is refused", reasons
    return (f"{outcome}; {sum(map(bool, refusals))} refused: {reasons}" if reasons else outcome), fault


def _not_refused(images: Pictures, refusals: Sequence[str]) -> Pictures:
    return [image for image, refusal in zip(images, refusals, strict=True) if not refusal]


def _images(word: str, images: Pictures, evaluations: int = 0) -> tuple[str, str]:
    shown = [image for image in images if image is not None]
    flat = sum(decode(image.png).std() < FLAT for image in shown)
    faults = []
    if len(shown) < len(images):
        faults.append(f"{len(images) - len(shown)} of {len(images)} images hold NaN or infinity: {HALF_PRECISION}")
    if flat:
        faults.append(f"{flat} of {len(images)} images are one flat colour: {HALF_PRECISION}")
    cost = f", {evaluations} network evaluations each" if evaluations else ""
    return f"{len(shown)} {word}{cost}", "; ".join(faults)


def _describe_check(reply: Contract) -> str:
    """The figures of a check; the steps of the edits have its scores beside their thresholds."""
    match reply:
        case StructureReply(agreements=agreements):
            return f"edges kept: {_figures(agreements)}"
        case JudgeReply(yes=rows):
            return f"probability of yes: {_figures([value for row in rows for value in row])}"
        case ShapesReply(judged=judged, outcomes=outcomes):
            overlaps = _figures([value for outcome in outcomes for value in outcome.classes])
            return f"detected in the source: {', '.join(judged) or 'no class'}; kept: {overlaps or 'none'}"
        case EmbedReply(images=images, texts=texts):
            return f"{len(images)} images and {len(texts)} texts embedded"
        case EmbedTextsReply(texts=texts):
            return f"{len(texts)} texts embedded"
        case _:
            return "answered"


def _figures(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def generated_pictures(reply: Contract) -> list[ImagePayload]:
    """The pictures that a reply's editor made."""
    match reply:
        case EditReply(images=rows):
            return [reply.reconstruction, *(image for row in rows for image in row if image is not None)]
        case RenderReply() | InstructReply() | ComposeReply() | CorruptReply():
            return [image for image in reply.images if image is not None]
        case _:
            return []


def control_pictures(reply: Contract) -> list[ImagePayload]:
    """The control images and the mask of the object that a reply's editor used."""
    match reply:
        case RenderReply():
            masks = [reply.keep_mask]
            return [*reply.controls.values(), *(mask for mask in masks if mask is not None)]
        case EditReply() | InstructReply():
            return [] if reply.keep_mask is None else [reply.keep_mask]
        case ComposeReply():
            return [reply.mask]
        case _:
            return []
