"""A second scorer behind the real evaluator: it scores every image and changes no verdict of the method."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from evaluator_service.app import create_app
from gateway.jobs.choices import method_defaults
from gateway.methods.checks import ACCEPTED_BY_SECOND, UNCALIBRATED, Pictures, check_images
from gateway.methods.counterfactual import Change, Edit, MethodImage, TaskDescription
from gateway.model_services.clients import ModelServices
from shared.media.images import encode
from shared.problems import Problem
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedRequest
from tests.support.listening import listen_as
from tests.support.service_settings import settings
from tests.support.small_evaluator import write_scorer
from tests.support.small_profile import write_profile

RANDOM = np.random.default_rng(7)
EDIT = Edit(
    (Change("weather", "day", "night", "day", "night"),), "A red car stands by day.", "A red car stands at night."
)
TASK = TaskDescription("classify", ("car", "bus", "boat"))


def picture() -> ImagePayload:
    return ImagePayload(png=encode(RANDOM.integers(0, 256, (64, 64, 3), dtype=np.uint8)))


@pytest.fixture(scope="module", params=[True, False], ids=["second", "alone"])
def profile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile with a CLIP, and with or without a SigLIP as the second scorer."""
    folder = tmp_path_factory.mktemp("scorers")
    write_scorer(folder / "scorer")
    path = write_profile(folder)
    if request.param:
        write_scorer(folder / "second", "siglip")
        named = 'second_scorer = { path = "second", licence = "none", gigabytes = 0.01 }'
        path.write_text(path.read_text().replace("[evaluator]\n", f"[evaluator]\n{named}\n"))
    return path


@pytest.fixture
def services(profile: Path) -> Iterator[ModelServices]:
    with listen_as("evaluator_service", create_app(settings(profile))) as services:
        yield services


def test_every_image_has_the_scores_of_both_scorers(profile: Path, services: ModelServices) -> None:
    if load_profile(str(profile)).evaluator.second_scorer is None:
        assert "second_thresholds" not in method_defaults("dillema", load_profile(str(profile)))
        with pytest.raises(Problem, match="second_scorer"):
            services.second_embed(EmbedRequest(texts=["a car"]))
        return
    assert method_defaults("lance", load_profile(str(profile)))["second_thresholds"] == UNCALIBRATED
    source, images = MethodImage("source", picture(), "car"), [picture(), picture()]
    first, again = (services.embed(EmbedRequest(images=images)), services.second_embed(EmbedRequest(images=images)))
    assert not np.allclose(first.images, again.images)
    assert np.allclose(np.linalg.norm(again.images, axis=1), 1)
    pictures = Pictures(images, None)
    alone = check_images(services, source, TASK, pictures, [EDIT, None], {})
    strict = {"label": {"default": 2.0}}
    for second_thresholds, accepted in ((strict, 0.0), ({"caption": {"default": -2.0}}, 1.0)):
        both = check_images(services, source, TASK, pictures, [EDIT, None], {}, second=second_thresholds)
        assert [verdict for verdict, _ in both] == [verdict for verdict, _ in alone]
        for (_, scores), (_, before) in zip(both, alone, strict=True):
            assert scores | before == scores
            assert scores["second_label"] != scores["label"]
            assert scores[ACCEPTED_BY_SECOND] == accepted
