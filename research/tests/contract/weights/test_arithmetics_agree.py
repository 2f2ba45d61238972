"""The shipped generator in bfloat16 and float32: similar images, the same verdicts, the same finding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from embedded.demo import run_demo
from gateway.jobs.choices import method_defaults
from gateway.methods.counterfactual import Verdict
from gateway.methods.dillema import DillemaParameters
from research.judges.trials import Drawing, Studio, source_picture
from research.measure.counterfactuals import edits_in_turn
from research.train.autoencoder import psnr
from shared.media.images import Pixels
from shared.profiles.profile import load_profile
from shared.schemas.effects import Cell
from shared.schemas.results import JobResults

FIRST = 9_200_000  # scenes that no figure rests on
EDITS = 8
DTYPES = ("float32", "bfloat16")


def rendered(monkeypatch: pytest.MonkeyPatch, dtype: str) -> tuple[list[Pixels], list[Verdict]]:
    """Edits of weather and time, with their verdicts."""
    monkeypatch.setenv("CONTRAFACT_DTYPE", dtype)
    profile = load_profile("tiny")
    studio = Studio(profile, DillemaParameters.model_validate(method_defaults("dillema", profile)))
    proposals = list(edits_in_turn(FIRST, EDITS, ("weather", "time")))
    sources = [source_picture(proposal.scene) for proposal in proposals]
    drawings = [
        Drawing(source, proposal.edit.new_caption, proposal.edit, seed)
        for seed, (source, proposal) in enumerate(zip(sources, proposals, strict=True))
    ]
    images = [image for image in studio.draw(drawings) if image is not None]
    verdicts = [
        studio.check(proposal.scene, source, [image], [proposal.edit])[0][0]
        for proposal, source, image in zip(proposals, sources, images, strict=True)
    ]
    return images, verdicts


def test_both_give_the_same_images_to_the_eye_and_the_same_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    (single, of_single), (half, of_half) = (rendered(monkeypatch, dtype) for dtype in DTYPES)
    apart = [psnr(image[None], other[None]) for image, other in zip(single, half, strict=True)]
    assert min(apart) >= 25, f"the autoencoder alone is 25 dB from what it is given: {apart}"
    assert any(not np.array_equal(image, other) for image, other in zip(single, half, strict=True)), (
        "both ran in float32"
    )
    same = sum(verdict.accepted == other.accepted for verdict, other in zip(of_single, of_half, strict=True))
    assert same >= EDITS - 1, "a score may lie at its threshold"


@pytest.mark.slow
def test_both_find_the_planted_weakness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = [demo(tmp_path / dtype, monkeypatch, dtype) for dtype in DTYPES]
    planted = Cell(label="bus", factor="weather", value="night", direction="to")
    for measured, dtype in zip(results, DTYPES, strict=True):
        service = measured.made.services["diffusion_service"]
        roles = ("base", "few-step lora")
        assert {info.dtype for info in service.weights if info.role.startswith(roles)} == {dtype}
        cells = {result.model: [effect.cell for effect in result.findings] for result in measured.results}
        assert cells["street-classifier-night-bus"][:1] == [planted]
        assert cells["street-classifier"] == []
    accepted = [measured.funnels[0].accepted.count for measured in results]
    assert abs(accepted[0] - accepted[1]) <= 0.1 * max(accepted), "the checks accept as many of either"


def demo(folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> JobResults:
    monkeypatch.setenv("CONTRAFACT_URL", "")
    monkeypatch.setenv("CONTRAFACT_DTYPE", dtype)
    return run_demo(folder, 44, ("bus", "car"), "weather=night")  # minutes where bfloat16 is emulated
