"""Which images the comparison with own images sends to the scorer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gateway.results.own_images import OwnImages, Photograph
from gateway.worker import corroboration_step
from shared.schemas.effects import Cell
from shared.schemas.evaluation import EmbedReply, EmbedRequest

CELL = Cell(label="bus", factor="weather", value="night", direction="to")


def test_an_image_whose_embedding_is_recorded_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[EmbedRequest] = []
    loaded: list[str] = []

    class Scorer:
        def __init__(self, *_: object) -> None: ...

        def revision(self, _: str) -> str:
            return "1"

        def embed(self, request: EmbedRequest) -> EmbedReply:
            asked.append(request)
            vectors = [[1.0, 0.0]]
            return EmbedReply(images=vectors * len(request.images), texts=vectors * len(request.texts), logit_scale=1)

        def load(self, digest: str) -> bytes:
            loaded.append(digest)
            return b"png"

    monkeypatch.setattr(corroboration_step, "RecordedServices", Scorer)
    monkeypatch.setattr(corroboration_step, "ImageShelf", Scorer)
    monkeypatch.setattr(corroboration_step, "recorded_embeddings", lambda *_: {"a": np.array([0.0, 1.0])})
    photographs = [Photograph(digest, digest, f"{digest}.png", "bus", digest) for digest in ("a", "b")]
    captions = {("dillema", CELL): {"night": ["at night"], "day": ["by day"]}}
    images = OwnImages("owner", photographs, {}, {}, captions, {})
    nothing: Any = Scorer()
    vectors = corroboration_step._vectors(images, nothing, nothing, nothing, lambda: None)
    assert loaded == ["b"]
    assert [(len(request.images), len(request.texts)) for request in asked] == [(0, 2), (1, 0)]
    assert (vectors.images["a"].tolist(), vectors.images["b"].tolist()) == ([0.0, 1.0], [1.0, 0.0])
