"""Every service reports each set of weights that its profile names while it loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import caption_service.app
import diffusion_service.app
import evaluator_service.app
import llm_service.app
from shared.profiles.diffusion import Diffusion
from shared.profiles.evaluator import Evaluator
from shared.profiles.profile import Caption, Language
from shared.profiles.weights import Section
from shared.service.devices import Loading
from shared.service.load_progress import WARM_UP, LoadProgress, expect
from shared.service.model_service import ModelService
from shared.service.settings import ServiceSettings
from tests.support.small_diffusion import write_depth, write_diffusion, write_segmenter
from tests.support.small_evaluator import write_classifier, write_scorer
from tests.support.small_models import save_blip2, save_llama


def sized(folder: Path, gigabytes: float) -> dict[str, Any]:
    return {"path": folder, "licence": "none", "gigabytes": gigabytes}


def diffusion(folder: Path) -> tuple[Section, float]:
    write_diffusion(folder)
    write_segmenter(folder / "segmenter")
    write_depth(folder / "depth")
    names = {"base": 1, "vae": 2, "segmenter": 4, "depth": 8}
    tables = {name: sized(folder / name, size) for name, size in names.items()}
    tables["vae"]["path"] = folder / "base" / "vae"
    controls = {"canny": sized(folder / "control", 16), "soft_edges": sized(folder / "control", 32)}
    return Diffusion.model_validate({**tables, "controlnets": controls}), 63


def evaluator(folder: Path) -> tuple[Section, float]:
    write_scorer(folder / "scorer")
    write_classifier(folder / "classifier", 1)
    write_segmenter(folder / "segmenter")
    tested = {"one": sized(folder / "classifier", 4)}
    tables = {"scorer": sized(folder / "scorer", 1), "segmenter": sized(folder / "segmenter", 2)}
    return Evaluator.model_validate({**tables, "models_under_test": tested}), 7


def caption(folder: Path) -> tuple[Section, float]:
    return Caption.model_validate({"engine": "blip2", "weights": sized(save_blip2(folder), 3)}), 3


def language(folder: Path) -> tuple[Section, float]:
    return Language.model_validate({"engine": "transformers", "weights": sized(save_llama(folder), 3)}), 3


@pytest.mark.parametrize(
    ("section_of", "load"),
    [
        (diffusion, diffusion_service.app.load),
        (evaluator, evaluator_service.app.load),
        (caption, caption_service.app.load),
        (language, llm_service.app.load),
    ],
)
def test_every_set_of_weights_is_reported(
    section_of: Callable[[Path], tuple[Section, float]], load: Callable[[Loading[Any]], object], tmp_path: Path
) -> None:
    section, gigabytes = section_of(tmp_path)
    settings = ServiceSettings(device="cpu", threads=1)
    service: ModelService[Any] = ModelService("test", "1", settings, lambda _: None)
    progress = LoadProgress()
    with progress.receiving():
        expect(section)
        load(Loading(section, "cpu", settings, service.batcher))
    service._drain()
    state = progress.state()
    assert (state.loading, state.gigabytes_loaded, state.gigabytes_total) == (WARM_UP, gigabytes, gigabytes)
