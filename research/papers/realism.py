"""KID of accepted counterfactuals against their originals, on the image features of CLIP weights."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from transformers import CLIPImageProcessorPil, CLIPModel

from contrafact import Client
from gateway.analysis.effects import Floats
from gateway.analysis.realism import kernel_distance
from research.paper_tables.printing import NOTHING
from shared.chunks import chunks
from shared.schemas.results import CounterfactualView

BATCH = 16
MOST = 2_000  # images of a method


def distances(client: Client, edits: Sequence[CounterfactualView], weights: str) -> dict[str, str]:
    """KID × 1000 with its standard error by method, over at most 2,000 accepted images. `weights`: a Hub id or folder.

    KID is unbiased at any number of images, where FID is not (Bińkowski et al. 2018).
    """
    model = CLIPModel.from_pretrained(weights, use_safetensors=True, dtype=torch.float32).eval()
    processor = CLIPImageProcessorPil.from_pretrained(weights)
    accepted: dict[str, list[CounterfactualView]] = defaultdict(list)
    for edit in edits:
        if edit.verdict.accepted and edit.image is not None and len(accepted[edit.method]) < MOST:
            accepted[edit.method].append(edit)
    table = {}
    for method, views in accepted.items():
        sources = {view.source.position: view.source.image for view in views}
        real = _features(client, list(sources.values()), model, processor)
        generated = _features(client, [view.image for view in views if view.image], model, processor)
        positions = np.array([view.source.position for view in views], np.int64)
        distance = kernel_distance(real, np.array(list(sources), np.int64), generated, positions)
        table[method] = NOTHING if distance is None else f"{1000 * distance.value:.1f} ± {1000 * distance.error:.1f}"
    return table


@torch.inference_mode()
def _features(client: Client, digests: Sequence[str], model: CLIPModel, processor: CLIPImageProcessorPil) -> Floats:
    rows = []
    for batch in chunks(digests, BATCH):
        images = [Image.open(io.BytesIO(client.image(digest)), formats=("PNG",)).convert("RGB") for digest in batch]
        pixels = processor(images=images, return_tensors="pt")["pixel_values"]
        projected = model.visual_projection(model.vision_model(pixel_values=pixels).pooler_output)
        rows.append((projected / projected.norm(dim=-1, keepdim=True)).numpy())
    return np.concatenate(rows).astype(np.float64)
