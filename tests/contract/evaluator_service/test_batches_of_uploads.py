"""Batches of an uploaded model whose time grows with the image, in a real evaluator."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from shared.images import encode
from shared.schemas.base import ImagePayload
from tests.support.hostile.models import PADS_TO_MULTIPLES_OF_128
from tests.support.small_evaluator import write_classifier, write_scorer
from tests.support.small_profile import write_profile
from tests.support.uploaded_models import evaluator, package_store

IMAGES = 16
LARGE = ImagePayload(png=encode(np.full((1024, 1024, 3), 90, np.uint8)))


@pytest.mark.slow
def test_a_batch_of_large_images_stays_within_the_time_limit_that_one_of_them_meets(tmp_path: Path) -> None:
    write_scorer(tmp_path / "scorer")
    write_classifier(tmp_path / "slow", 1, embedding_size=32)
    (tmp_path / "slow" / "preprocessor_config.json").write_bytes(PADS_TO_MULTIPLES_OF_128)
    profile, quarantine = write_profile(tmp_path), tmp_path / "quarantine"
    files = {path.name: path.read_bytes() for path in (tmp_path / "slow").iterdir()}

    async def scenario() -> None:
        with package_store() as store:
            upload, seconds = store.add(files), 0.0
            async with evaluator(profile, store.url, quarantine) as served:
                for _ in range(3):
                    started = time.monotonic()
                    assert (await served.predict(upload, LARGE)).status_code == 200
                    seconds = time.monotonic() - started
            limits = {"upload_batch_seconds": 6 * seconds, "max_batch": IMAGES}
            async with evaluator(profile, store.url, quarantine, **limits) as served:
                reply = await served.predict(upload, *[LARGE] * IMAGES)
                assert reply.status_code == 200, reply.text
                assert len(reply.json()["probabilities"]) == IMAGES
                assert await served.quarantined() == {}

    asyncio.run(scenario())
