"""Instruction-following pipelines of diffusers, with small random weights of the same classes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from diffusion_service.editors import pipelines
from diffusion_service.editors.pipelines import PIPELINES, PipelineEdit, PipelineEditor, PipelineItem
from shared.images import Pixels
from shared.problems import InvalidInput
from shared.profile_instruct import INPAINTING, InstructPipeline, PipelineName
from shared.weights import Weights
from tests.support.diffusion_requests import photo, pixels
from tests.support.small_pipelines import write_pipeline

STEPS, HEIGHT, WIDTH = 2, 40, 72


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pipelines")


def profile_of(folder: Path, name: PipelineName, **changes: Any) -> InstructPipeline:
    if not (folder / name).exists():
        write_pipeline(folder / name, name)
    weights = Weights(path=folder / name, licence="none", gigabytes=0.01)
    return InstructPipeline(engine="pipeline", pipeline=name, weights=weights, resolution=96, **changes)


SOURCE = pixels(photo(WIDTH, HEIGHT))
LEFT = np.zeros((HEIGHT, WIDTH), np.uint8)
LEFT[:, : WIDTH // 2] = 255


def item(name: PipelineName, instruction: str = "make it night", seed: int = 1, guidance: float = 1.0) -> PipelineItem:
    keep = LEFT if name in INPAINTING else None
    return PipelineItem(SOURCE, keep, instruction, seed, STEPS, guidance)


def edited(editor: PipelineEditor, request: PipelineItem) -> PipelineEdit:
    (result,) = editor.edit(request, [request])
    assert isinstance(result, PipelineEdit)
    return result


def difference(first: Pixels, second: Pixels) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Mean difference in each column."""
    columns: np.ndarray[Any, np.dtype[np.float64]] = np.abs(first.astype(float) - second).mean(axis=(0, 2))
    return columns


@pytest.mark.slow
@pytest.mark.parametrize("name", get_args(PipelineName))
def test_a_pipeline_edits_at_the_sources_size(folder: Path, name: PipelineName) -> None:
    torch.set_num_threads(1)
    editor = PipelineEditor(profile_of(folder, name), "cpu")
    night, again = edited(editor, item(name)), edited(editor, item(name))
    other = edited(editor, item(name, seed=2))
    assert night.image.shape == (HEIGHT, WIDTH, 3)
    assert night.image.std() > 1
    assert np.array_equal(night.image, again.image), "the same request, the same picture"
    assert difference(night.image, other.image).max() > 0, "the seed matters"
    assert night.evaluations == STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Flux2KleinInpaintPipeline", {"seed": 2}),
        ("FluxKontextInpaintPipeline", {"seed": 2}),
        ("QwenImageEditInpaintPipeline", {"guidance": 30.0}),  # by the seed it draws the source's latents, too
    ],
)
def test_inpainting_keeps_what_it_is_told_to_keep(folder: Path, name: PipelineName, change: dict[str, Any]) -> None:
    editor = PipelineEditor(profile_of(folder, name), "cpu")
    first, second = edited(editor, item(name)), edited(editor, item(name, **change))
    columns = difference(first.image, second.image)
    assert columns[: WIDTH // 4].mean() < columns[-WIDTH // 4 :].mean() / 2
    assert np.array_equal(first.image[LEFT > 0], SOURCE[LEFT > 0]), "exactly, though the autoencoder blurs"


@pytest.mark.parametrize("name", ["Flux2KleinPipeline", "FluxKontextPipeline"])
def test_the_instruction_matters(folder: Path, name: PipelineName) -> None:
    editor = PipelineEditor(profile_of(folder, name), "cpu")
    night, rain = edited(editor, item(name)), edited(editor, item(name, "let it rain in the city"))
    assert difference(night.image, rain.image).max() > 0


@pytest.mark.slow
def test_guidance_costs_a_second_pass_where_the_pipeline_has_it(folder: Path) -> None:
    name: PipelineName = "QwenImageEditPlusPipeline"
    editor = PipelineEditor(profile_of(folder, name), "cpu")
    assert edited(editor, item(name, guidance=4.0)).evaluations == 2 * STEPS


def test_a_padded_batch_is_computed_once(folder: Path) -> None:
    editor = PipelineEditor(profile_of(folder, "Flux2KleinPipeline"), "cpu")
    request = item("Flux2KleinPipeline")
    first, second = editor.edit(request, [request, request])
    assert first is second


def test_a_quantised_transformer_edits_nearly_as_before(folder: Path) -> None:
    name: PipelineName = "Flux2KleinPipeline"
    plain = edited(PipelineEditor(profile_of(folder, name), "cpu"), item(name))
    profile = profile_of(folder, name, quantisation="float8")
    transformer = pipelines.load_pipeline(profile, "cpu").transformer
    assert torch.float8_e4m3fn in {parameter.dtype for parameter in transformer.parameters()}
    small = edited(PipelineEditor(profile, "cpu"), item(name))
    assert 0 < difference(plain.image, small.image).mean() < 20


def test_what_cannot_be_loaded_is_refused_with_what_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name: PipelineName = "FluxKontextPipeline"
    profile = profile_of(folder / "pickled", name)
    weights = folder / "pickled" / name / "vae" / "diffusion_pytorch_model.safetensors"
    torch.save(load_file(weights), weights.with_suffix(".bin"))
    weights.unlink()
    with pytest.raises(OSError, match="safetensors"):
        PipelineEditor(profile, "cpu")
    hub = profile.weights.model_copy(update={"path": None, "hub": "nobody/nothing", "revision": "0" * 40})
    with pytest.raises(OSError, match="fetch_weights"):
        PipelineEditor(profile.model_copy(update={"weights": hub}), "cpu")
    monkeypatch.setattr(pipelines, "diffusers", SimpleNamespace())
    with pytest.raises(ValueError, match=r"install diffusers 0\.42"):
        PipelineEditor(profile_of(folder, name), "cpu")


def test_an_image_that_a_pipeline_does_not_take_is_refused(folder: Path) -> None:
    long = PipelineItem(pixels(photo(200, 10)), None, "make it night", 1, STEPS, 1.0)
    (refused,) = PipelineEditor(profile_of(folder, "Flux2KleinPipeline"), "cpu").edit(long, [long])
    assert isinstance(refused, InvalidInput)


def test_every_pipeline_of_a_profile_is_listed() -> None:
    assert set(PIPELINES) == set(get_args(PipelineName))
