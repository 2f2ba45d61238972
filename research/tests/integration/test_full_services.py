"""`make full-size`: the architectures have the published sizes, and what is measured is what the services do."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.random_networks import parameters, random_network
from diffusion_service.app import create_app
from research.full_services import __main__ as command
from research.full_services.generating import editing, generator_profile, rendering, source_of
from research.full_services.generators import SD15, SDXL, Architecture, build_controlnet, build_unet, write_generator
from research.full_services.meter import ServiceMeter, Work
from research.full_services.parts import PARTS
from research.full_services.served import measured_steps
from research.full_services.table import full_size_section
from shared.service.settings import ServiceSettings

# UniPC on a numpy above 2.0
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SMALL_XL = Architecture(
    unet={
        "sample_size": 16, "block_out_channels": (32, 64), "cross_attention_dim": 96, "layers_per_block": 1,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"), "transformer_layers_per_block": (1, 2),
        "attention_head_dim": (2, 4), "use_linear_projection": True, "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 6 * 8 + 64,
    },
    texts=[
        {"hidden_size": 32, "intermediate_size": 64, "projection_dim": 32, "num_hidden_layers": 2,
         "num_attention_heads": 2},
        {"hidden_size": 64, "intermediate_size": 64, "projection_dim": 64, "num_hidden_layers": 2,
         "num_attention_heads": 2},
    ],
    vae=(16, 32, 32),
    hint=(8, 16, 16),
    groups=8,
    upcast=True,
)  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "unet", "control"), [(SD15, 859_520_964, 361_279_120), (SDXL, 2_567_463_684, 1_251_014_160)]
)
def test_the_architectures_have_the_published_numbers_of_parameters(
    architecture: Architecture, unet: int, control: int
) -> None:
    with torch.device("meta"):
        assert parameters(build_unet(architecture)) == unet
        assert parameters(build_controlnet(architecture)) == control


def test_random_networks_are_finite_in_half_precision() -> None:
    network = random_network(lambda: torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(50))), torch.bfloat16)
    output = network(torch.randn(4, 64, dtype=torch.bfloat16))
    assert output.dtype == torch.bfloat16
    assert output.isfinite().all()


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Work], list[str]]:
    folder = tmp_path_factory.mktemp("xl")
    write_generator(folder, SMALL_XL, ["canny"])
    settings = ServiceSettings(
        profile=str(generator_profile(folder, ["canny"])), device="cpu", threads=1, dtype="float32"
    )
    source = source_of(64)
    steps = {"render": rendering(source, "full", "full"), "edit": editing(source)}
    meter = ServiceMeter()
    try:
        states = asyncio.run(measured_steps(meter, create_app(settings), steps))
    finally:
        meter.close()
    return meter.work, states


def test_passes_seconds_and_memory_are_those_of_each_request(measured: tuple[list[Work], list[str]]) -> None:
    load, render, edit = measured[0]
    assert [work.name for work in measured[0]] == ["load and warm-up", "render", "edit"]
    assert render.facts == {"images": 2, "finite": 2}
    passes = {(each.network, each.rows): each.count for each in render.passes}
    assert passes == {("unet", 4): 1, ("controlnet", 4): 1, ("decoder", 1): 2}
    passes = {(each.network, each.rows): each.count for each in edit.passes}
    assert passes == {("encoder", 1): 1, ("unet", 1): 1, ("unet", 3): 1, ("decoder", 1): 2}
    for work in (load, render, edit):
        assert 0 < sum(each.cpu_seconds for each in work.passes) < work.cpu_seconds
        assert work.gib_peak >= work.gib_before > 0


def test_the_section_names_each_request_and_what_stopped_a_part(
    measured: tuple[list[Work], list[str]], tmp_path: Path
) -> None:
    work, states = measured
    conditions = command._conditions(1, "sdxl")
    part: dict[str, Any] = {"title": "Small", "parameters": {"unet": 10**9}, "states": states, "warnings": []}
    path = tmp_path / "figures.json"
    command.write_figures(path, "sdxl", part | {"work": [each.figures() for each in work]} | conditions)
    command.write_figures(path, "sd15", {"stopped": "12.0 GiB"} | conditions)
    assert list(json.loads(path.read_text())) == ["sd15", "sdxl"]
    section = full_size_section(path)
    assert "12.0 GiB" in section
    assert "| render (2 of 2 images finite) |" in section
    assert conditions["processor"] in section


def test_a_part_that_needs_too_much_memory_is_stopped_with_the_figure() -> None:
    reason, _ = command.run_watched([sys.executable, "-c", "import time; time.sleep(100)"], 0.001)
    assert "exceed 0.001 GiB" in reason


def test_a_part_that_fails_says_why_and_warnings_are_kept() -> None:
    code = "import warnings; warnings.warn('half a truth'); raise SystemExit('no weights')"
    reason, warnings = command.run_watched([sys.executable, "-c", code], 11)
    assert reason == "no weights"
    assert any("half a truth" in line for line in warnings)


def test_the_command_knows_the_parts_that_the_makefile_names() -> None:
    makefile = (Path(__file__).parents[3] / "Makefile").read_text()
    assert f"PARTS ?= {','.join(PARTS)}" in makefile
