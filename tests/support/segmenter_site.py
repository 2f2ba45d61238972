"""A small world of streets in which a segmenter is really trained, fails at night, and can be repaired; and its job.

A horizon parts sky and road, a car stands on the road, the last row is void. Night swaps light and dark, dusk less so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from transformers import SegformerConfig, SegformerForSemanticSegmentation
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil

from gateway.database.sessions import Sessions
from shared.media.images import Pixels, from_array
from shared.media.label_maps import VOID
from shared.media.storage import ObjectStore
from tests.support.job_counts import store_counts
from tests.support.repair_site import CONTRAST, SIDE, TINT, add_arms, add_finished_job, add_source, keep, values_of

CLASSES = ["sky", "road", "vehicle"]  # of the masks
OWN = ["vehicle", "road", "truck", "sky"]  # of the model, which knows one more
LIGHT = np.array([0.9, -0.9, 0.1])


def street(value: str, seed: int) -> tuple[Pixels, Pixels]:
    """A picture, SIDE × SIDE × 3, and its mask in places of CLASSES; the value alone decides how it looks."""
    random = np.random.default_rng(seed)
    mask = np.zeros((SIDE, SIDE), np.uint8)
    horizon, left = random.integers(8, 18), random.integers(2, 18)
    mask[horizon:] = 1
    mask[horizon + 3 : horizon + 11, left : left + 11] = 2
    light = LIGHT[mask][..., None]
    shade = 128 + 70 * CONTRAST[value] * light + random.normal(0, 8, (SIDE, SIDE, 3)) + TINT[value]
    mask[-1] = VOID
    return np.asarray(np.clip(shade, 0, 255), np.uint8), mask


def write_day_segmenter(folder: Path, steps: int = 120) -> None:
    """A small SegFormer, trained on days alone, in Hub layout."""
    torch.manual_seed(0)
    config = SegformerConfig(
        hidden_sizes=[16, 16, 24, 24], depths=[1] * 4, num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=32,
        id2label=dict(enumerate(OWN)), drop_path_rate=0.0, classifier_dropout_prob=0.0, semantic_loss_ignore_index=VOID,
    )  # fmt: skip
    model = SegformerForSemanticSegmentation(config).train()
    processor = SegformerImageProcessorPil(size={"height": SIDE, "width": SIDE}, do_reduce_labels=False)
    class_of_mask = np.full(256, VOID)
    class_of_mask[: len(CLASSES)] = [OWN.index(name) for name in CLASSES]
    optimiser = torch.optim.AdamW(model.parameters(), 5e-3)
    for step in range(steps):
        streets = [street("day", 10_000 + 16 * step + place) for place in range(16)]
        values = processor(images=[Image.fromarray(image) for image, _ in streets], return_tensors="pt")["pixel_values"]
        labels = torch.from_numpy(np.stack([class_of_mask[mask] for _, mask in streets]).astype(np.int64))
        optimiser.zero_grad()
        torch.autograd.backward(model(pixel_values=values, labels=labels).loss)
        optimiser.step()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    (folder / "contrafact.json").write_text('{"task": "segmentation"}')


def add_job(
    sessions: Sessions, store: ObjectStore, job: str = "made", *, sources: int = 30, masks: bool = True
) -> None:
    """A finished job: streets by day, each with a null arm and edits to night, dusk and (every third) fog."""
    with sessions.begin() as session:
        add_finished_job(session, job, "segmentation", CLASSES)
        for position in range(sources):
            picture, mask = street("day", position)
            images = {
                value: from_array(street(value, position)[0] ^ np.uint8(value == "day"))
                for value in values_of(position)
            }
            source, truth = from_array(picture), from_array(mask)
            for image in (source, truth, *images.values()):
                keep(session, store, image)
            columns = {"mask_digest": truth.digest, "mask_classes": CLASSES} if masks else {}
            add_source(session, job, position, source, **columns)
            add_arms(session, job, position, images)
        store_counts(session, job)
