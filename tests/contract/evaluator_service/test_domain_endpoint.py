"""`POST /v1/domain` of the shipped evaluator, and of one whose profile takes all images."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sklearn.datasets import load_sample_images

from evaluator_service.app import create_app
from shared.media.images import encode
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import DomainRequest
from shared.service.endpoints import Services
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_evaluator import write_classifier, write_scorer
from tests.support.small_profile import write_profile
from tinyworld.objects.demo import own_distribution
from tinyworld.objects.render import render


@pytest.mark.slow
def test_photographs_are_outside_the_shipped_profile() -> None:
    drawn = [render(own_distribution(index, "demo")).image for index in range(6)]
    images = [ImagePayload(png=encode(pixels)) for pixels in [*load_sample_images().images, *drawn]]

    async def scenario() -> None:
        async with serving(create_app(settings(Path("tiny")))) as client:
            reply = await call(client, Services.domain, DomainRequest(images=images))
            assert min(reply.log_odds[:2]) > 0
            assert sorted(reply.log_odds[2:])[-2] < 0, "one drawn picture in thirty is taken for something else"

    asyncio.run(scenario())


def test_a_profile_without_a_domain_says_so(tmp_path: Path) -> None:
    write_classifier(tmp_path / "first", 1)
    write_scorer(tmp_path / "scorer")

    async def scenario() -> None:
        async with serving(create_app(settings(write_profile(tmp_path)))) as client:
            reply = await client.post(Services.domain.path, json={"images": []})
            assert reply.status_code == 422
            picture = ImagePayload(png=encode(render(own_distribution(0, "demo")).image))
            body = DomainRequest(images=[picture]).model_dump_json()
            refused = await client.post(Services.domain.path, content=body)
            assert (refused.status_code, "[evaluator.domain]" in refused.json()["detail"]) == (422, True)

    asyncio.run(scenario())
