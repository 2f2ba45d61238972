"""Batches of an uploaded model whose time grows with the image, in a real evaluator."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import UploadedModel
from tests.support.hostile.models import PADS_TO_MULTIPLES_OF_128
from tests.support.small_evaluator import write_classifier, write_scorer
from tests.support.small_profile import write_profile
from tests.support.uploaded_models import Evaluator, evaluator, package_store

IMAGES = 16
ATTEMPTS = 5  # on a machine whose load changes
LARGE = ImagePayload(png=encode(np.full((1024, 1024, 3), 90, np.uint8)))


@pytest.mark.slow
def test_a_batch_of_large_images_stays_within_the_time_limit_that_one_of_them_meets(tmp_path: Path) -> None:
    write_scorer(tmp_path / "scorer")
    write_classifier(tmp_path / "slow", 1, embedding_size=32)
    (tmp_path / "slow" / "preprocessor_config.json").write_bytes(PADS_TO_MULTIPLES_OF_128)
    profile = write_profile(tmp_path)
    files = {path.name: path.read_bytes() for path in (tmp_path / "slow").iterdir()}

    async def scenario() -> None:
        with package_store() as store:
            upload = store.add(files)
            async with evaluator(profile, store.url, tmp_path / "unlimited") as unlimited:
                await seconds_of_one(unlimited, upload)  # loads it
                for _ in range(ATTEMPTS):
                    await seconds_of_one(unlimited, upload)
                    seconds = await seconds_of_one(unlimited, upload)
                    limits = {"upload_batch_seconds": 6 * seconds, "max_batch": IMAGES}
                    async with evaluator(profile, store.url, tmp_path / "quarantine", **limits) as served:
                        reply = await served.predict(upload, *[LARGE] * IMAGES)
                        quarantined = await served.quarantined()
                    if reply.status_code == 200 or await seconds_of_one(unlimited, upload) < 1.5 * seconds:
                        break  # otherwise the machine became busier, and the limit no longer fits one image
                    shutil.rmtree(tmp_path / "quarantine")
            assert reply.status_code == 200, reply.text
            assert len(reply.json()["probabilities"]) == IMAGES
            assert quarantined == {}

    asyncio.run(scenario())


async def seconds_of_one(served: Evaluator, upload: UploadedModel) -> float:
    """How long a large image takes alone."""
    started = time.monotonic()
    assert (await served.predict(upload, LARGE)).status_code == 200
    return time.monotonic() - started
