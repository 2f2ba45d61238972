"""Instruction-following pipelines of diffusers, with small random weights of the same classes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import gguf
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file

from diffusion_service.editors import pipelines
from diffusion_service.editors.pipelines import PIPELINES, WORKSPACE, PipelineEdit, PipelineEditor, PipelineItem
from diffusion_service.instruct import PipelineEngine
from shared.media.images import Pixels, encode
from shared.problems import InvalidInput
from shared.profiles.instruct import INPAINTING, GgufTransformer, InstructPipeline, PipelineName
from shared.profiles.unets import MergedLora
from shared.profiles.weights import Weights
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import InstructedEdit, InstructRequest
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


@pytest.mark.slow
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


GB = 10**9
KLEIN = [8 * GB, 8 * GB, GB]  # text encoder, transformer, autoencoder


@pytest.mark.parametrize(
    ("free", "quantised", "expected"),
    [
        (17 * GB + WORKSPACE, False, "none"),
        (17 * GB + WORKSPACE - 1, False, "model"),
        (8 * GB + WORKSPACE, False, "model"),
        (8 * GB + WORKSPACE - 1, False, "sequential"),
        (8 * GB + WORKSPACE - 1, True, "model"),  # it has no other choice
    ],
)
def test_the_free_memory_decides_what_stays_on_the_device(free: int, quantised: bool, expected: str) -> None:
    assert pipelines.choose_offload(free, KLEIN, quantised=quantised) == expected


def test_the_size_of_a_network_is_that_of_its_weights(folder: Path) -> None:
    name: PipelineName = "Flux2KleinPipeline"
    plain = pipelines.network_bytes(pipelines.load_pipeline(profile_of(folder, name), "cpu"))
    small = pipelines.network_bytes(pipelines.load_pipeline(profile_of(folder, name, quantisation="float8"), "cpu"))
    assert plain.keys() == {"text_encoder", "transformer", "vae"}
    file = (folder / name / "transformer" / "diffusion_pytorch_model.safetensors").stat().st_size
    assert 0.9 * file < plain["transformer"] <= file
    assert small["transformer"] < 0.6 * plain["transformer"]


@pytest.mark.parametrize("name", ["Flux2KleinPipeline", pytest.param("FluxKontextPipeline", marks=pytest.mark.slow)])
def test_the_instructions_of_a_request_are_encoded_before_its_edits_and_once_each(
    folder: Path, name: PipelineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = profile_of(folder, name)
    calls: list[str] = []

    async def run(work: Any, key: Any, items: Any, deadline: float) -> list[Any]:
        calls.append(work.__name__)
        return list(work(key, items))

    def count(network: torch.nn.Module, *_: object) -> None:
        if type(network).__name__ in ("Qwen3ForCausalLM", "T5EncoderModel"):
            calls.append("text encoder")

    edits = [InstructedEdit(instruction=text, seed=1) for text in ("night", "rain", "night")]
    request = InstructRequest(source=ImagePayload(png=encode(SOURCE)), edits=edits, steps=STEPS, guidance=1.0)
    handle = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        images = asyncio.run(PipelineEngine(profile, "cpu", run).edit(request, SOURCE, None, 1e9)).images
    finally:
        handle.remove()
    assert calls == ["encode", "text encoder", "text encoder", "edit", "edit", "edit"]
    monkeypatch.setitem(PIPELINES, name, replace(PIPELINES[name], embeddings=()))
    plain = edited(PipelineEditor(profile, "cpu"), item(name, "rain"))
    assert isinstance(images[1], np.ndarray)
    assert np.array_equal(images[1], plain.image), "the pixels of an instruction that the pipeline encodes itself"


LORAS = {
    "Flux2KleinPipeline": "single_transformer_blocks.0.attn.to_out",
    "QwenImageEditPlusPipeline": "transformer_blocks.0.attn.to_q",
}


@pytest.mark.parametrize(
    "name", ["Flux2KleinPipeline", pytest.param("QwenImageEditPlusPipeline", marks=pytest.mark.slow)]
)
def test_a_lora_and_options_of_the_scheduler_change_the_edit(folder: Path, name: PipelineName) -> None:
    plain = profile_of(folder, name)
    before = pipelines.load_pipeline(plain, "cpu").transformer.get_submodule(LORAS[name]).weight
    torch.manual_seed(5)
    down, up = torch.randn(2, before.shape[1]), torch.randn(before.shape[0], 2)
    loras = folder / f"loras-{name}"
    loras.mkdir()
    key = f"transformer.{LORAS[name]}"
    state = {f"{key}.lora_A.weight": down, f"{key}.lora_B.weight": up}
    if name == "QwenImageEditPlusPipeline":  # the layout of Lightning's file
        state = {f"{LORAS[name]}.lora_{part}.weight": one for part, one in (("down", down), ("up", up))}
        state[f"{LORAS[name]}.alpha"] = torch.tensor(2.0)
    save_file(state, loras / "four-steps.safetensors")
    save_file({"transformer.blocks.9.lora_A.weight": down}, loras / "other.safetensors")
    lora = MergedLora(path=loras, file="four-steps.safetensors", licence="none", gigabytes=0.1, scale=0.5)
    changed = plain.model_copy(update={"loras": [lora], "scheduler_options": {"shift": 3.0}})
    pipeline = pipelines.load_pipeline(changed, "cpu")
    merged = pipeline.transformer.get_submodule(LORAS[name]).weight
    assert torch.allclose(merged, before + 0.5 * up @ down, atol=1e-5)
    assert pipeline.scheduler.config.shift == 3.0
    assert not any("lora" in parameter for parameter, _ in pipeline.transformer.named_parameters()), "merged"
    other = plain.model_copy(update={"loras": [lora.model_copy(update={"file": "other.safetensors"})]})
    with pytest.raises(ValueError, match=r"no LoRA of the pipeline's transformer: it has no transformer\.blocks\.9"):
        pipelines.load_pipeline(other, "cpu")
    unknown = plain.model_copy(update={"scheduler_options": {"shifts": 3.0}})
    with pytest.raises(ValueError, match="has no option shifts; it has"):
        pipelines.load_pipeline(unknown, "cpu")


@pytest.mark.slow
def test_a_transformer_of_a_gguf_file_edits_nearly_as_the_pipelines_own(folder: Path) -> None:
    name: PipelineName = "QwenImageEditPlusPipeline"
    plain = profile_of(folder, name)
    torch.manual_seed(3)
    writer = gguf.GGUFWriter(folder / "transformer.gguf", "qwen_image")
    for key, value in pipelines.load_pipeline(plain, "cpu").transformer.state_dict().items():
        kind = gguf.GGMLQuantizationType.Q8_0
        large = value.ndim == 2 and value.shape[1] % 32 == 0
        writer.add_tensor(
            key,
            gguf.quants.quantize(value.numpy(), kind) if large else value.numpy(),
            raw_dtype=kind if large else None,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufTransformer(path=folder, file="transformer.gguf", licence="none", gigabytes=0.01)
    profile = plain.model_copy(update={"transformer": file})
    transformer = pipelines.load_pipeline(profile, "cpu").transformer
    assert torch.uint8 in {parameter.dtype for parameter in transformer.parameters()}, "it is kept quantised"
    expected, quantised = (edited(PipelineEditor(one, "cpu"), item(name)) for one in (plain, profile))
    assert 0 < difference(expected.image, quantised.image).mean() < 10


def test_a_quantised_file_takes_no_loras(folder: Path) -> None:
    file = {"path": "x", "licence": "none", "gigabytes": 0.1}
    with pytest.raises(ValidationError, match="GGUF"):
        profile_of(
            folder,
            "QwenImageEditPlusPipeline",
            transformer=file | {"file": "a.gguf"},
            loras=[file | {"file": "a.safetensors"}],
        )
