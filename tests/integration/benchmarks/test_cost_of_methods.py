"""The cost benchmark on random Stable Diffusion weights: its counts, and that its loops are right."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.cost_arms import Arms, arms_of
from benchmarks.cost_pipelines import LoopSettings
from benchmarks.cost_reference import LanceLoop, PaperLance
from benchmarks.cost_report import Row, measure, ratios, row, table
from benchmarks.cost_sources import Source, sources
from benchmarks.cost_weights import write_random
from diffusion_service.attention import install
from diffusion_service.loading import load
from diffusion_service.stable_diffusion import StableDiffusion
from shared.profiles.profile import Profile, load_profile
from tests.support.small_costs import SMALL

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # UniPC, numpy above 2.0


PAPER = PaperLance(steps=5, iterations=3, fractions=(0.4, 0.9))
LOOPS = (LoopSettings("code", "UniPCMultistepScheduler", 2, 7.5), LoopSettings("same", None, 3, 2.5))


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """The tiny profile over small random weights, with few steps."""
    torch.set_num_threads(1)
    captions = [text for source in sources(1, 2) for text in (source.caption, *source.prompts)]
    diffusion = write_random(tmp_path_factory.mktemp("weights"), SMALL, captions * 4, "float32")
    methods = {"dillema": {"steps": 3, "guidance": 2.5}, "lance": {"steps": 4, "self_fractions": [0.2, 0.5, 0.8]}}
    return load_profile("tiny").model_copy(update={"diffusion": diffusion, "methods": methods})


@pytest.fixture(scope="module")
def arms(profile: Profile) -> Arms:
    return arms_of(profile, "cpu", paper=PAPER, pipelines=LOOPS)


@pytest.fixture(scope="module")
def rows(profile: Profile) -> list[Row]:
    (measured,) = measure(arms_of(profile, "cpu", paper=PAPER, pipelines=LOOPS), sources(1, 2), ["lance", "dillema"])
    return measured


@pytest.mark.slow
def test_the_evaluations_are_those_of_the_loops(rows: list[Row]) -> None:
    papers, settings, ours, code, one_by_one, together = rows
    assert [row.produced for row in rows] == [2] * 6
    # The inversion; a step's 1 + 3 for each iteration of the optimiser + 2; four rows a step for 2 edits × 2 fractions.
    assert 5 + 5 * (1 + 3 + 2) + 2 * 2 * 4 * 5 <= papers.evaluations <= 5 + 5 * (1 + 3 * 3 + 2) + 2 * 2 * 4 * 5
    # The inversion; in one batch two rows for each of 2 edits × fractions, and a source row until the largest fraction.
    assert settings.evaluations == 5 + 4 + 5 * 2 * 2 * 2
    assert ours.evaluations == 4 + 3 + 4 * 2 * 2 * 3
    assert code.evaluations == 2 * 2 * 2
    assert one_by_one.evaluations == together.evaluations == 2 * 2 * 3
    assert one_by_one.teraflops >= together.teraflops > 0
    assert papers.teraflops > settings.teraflops


@pytest.mark.slow
def test_the_table_and_its_ratios_follow_from_the_rows(rows: list[Row]) -> None:
    text = table([rows[0]._replace(accepted=1, good=2), *rows[1:]])
    assert text.count("\n") == 7
    assert "1 (9% to 91%) | 2 (34% to 100%)" in text
    assert "not judged" in text
    first, *_ = ratios(rows)
    share = rows[0].evaluations / rows[1].evaluations
    assert first.startswith(f"{rows[0].name} against {rows[1].name}")
    assert f"{share:.1f} ×" in first
    judged = [row._replace(accepted=n, good=1) for row, n in zip(rows, (1, 2, 2, 4, 4, 4), strict=True)]
    assert f"per accepted counterfactual: {2 * share:.1f} × the evaluations" in ratios(judged)[1]
    assert f"per good counterfactual: {share:.1f} × the evaluations" in ratios(judged)[2]
    json.dumps([row._asdict() for row in rows])


@pytest.mark.slow
def test_a_side_without_a_counterfactual_is_named_and_not_left_out(rows: list[Row]) -> None:
    judged = [row._replace(accepted=n, good=0) for row, n in zip(rows, (0, 2, 0, 4, 4, 4), strict=True)]
    sentences = ratios(judged)
    pairs = sum(theirs.papers and not ours.papers and theirs.method == ours.method for theirs in rows for ours in rows)
    assert len(sentences) == len(ratios(rows)) == 3 * pairs
    settings, ours = (sentences[at].partition("accepted counterfactual: ")[2] for at in (1, 4))
    assert [sentence.count("0 of 2 accepted") for sentence in (settings, ours)] == [1, 2]
    assert ratios(rows)[2].count("is not judged") == 2


@pytest.mark.slow
def test_operations_are_those_that_torch_counts(arms: Arms) -> None:
    (source,) = sources(1, 1)
    for arm in (arms.arms[0], arms.arms[2], arms.arms[4], arms.arms[5]):
        before = row(arm).teraflops
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
            arms.run(arm, source)
        assert (row(arm).teraflops - before) * 1e12 == pytest.approx(counter.get_total_flops(), rel=0.02)


@pytest.mark.slow
def test_the_papers_loop_edits_the_image_that_it_inverts(profile: Profile) -> None:
    """With the caption as new prompt, every picture is the reconstruction, for all fractions."""
    loop, source = LanceLoop(_weights(profile), replace(PAPER, fractions=(0.0, 1.0))), _source()
    ((free, tied),) = loop.edit(source.image, source.caption, [source.caption])
    assert np.abs(free.astype(int) - tied.astype(int)).max() <= 1
    ((edited, _),) = loop.edit(source.image, source.caption, source.prompts[:1])
    assert np.abs(edited.astype(int) - free.astype(int)).max() > 1


@pytest.mark.slow
def test_at_our_settings_the_public_pipeline_draws_our_pictures(arms: Arms) -> None:
    one_by_one, together = arms.arms[4:]
    (source,) = sources(1, 2)
    for (alone,), (in_company,) in zip(one_by_one.render(source), together.render(source), strict=True):
        assert np.abs(alone.astype(int) - in_company.astype(int)).max() <= 1


def _weights(profile: Profile) -> StableDiffusion:
    diffusion = profile.diffusion
    weights = load(diffusion.base, diffusion.controlnets, device="cpu")
    install(weights.unet)
    return weights


def _source() -> Source:
    """A source of the size that the small networks have."""
    (source,) = sources(1, 1)
    return replace(source, image=np.ascontiguousarray(source.image[:64, :64]))
