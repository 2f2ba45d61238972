"""The shipped editors of both domains, loaded as the service loads them, on scenes that no training saw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from diffusion_service.editors.instruct_pix2pix import InstructItem, InstructKey, fitted
from diffusion_service.editors.one_step import OneStepEditor, load_one_step
from diffusion_service.few_steps import few_steps_of, load_networks
from gateway.methods.instruct import SHAM_INSTRUCTION
from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.datasets.instructed_pictures import EDITS, pair
from research.train.instruct import CHANGED, TIME
from shared.media.images import Pixels
from shared.profiles.instruct import OneStep
from shared.profiles.profile import load_profile
from tinyworld.domain.names import Domain

PROFILES: dict[Domain, str] = {"objects": "tiny", "roads": "tiny-roads"}
FIRST = 2_000_000  # the first pair of the split "calibration"; sheets begin at 1,000,000
PAIRS, BATCH = 24, 8
KEY = InstructKey(128, 128, steps=1, guidance=1.0, image_guidance=1.0)


@dataclass(frozen=True)
class Edited:
    """Pictures of `PAIRS` scenes, 128 x 128 x 3 each. `by_another`: under the instruction of another pair."""

    sources: NDArray[np.uint8]
    targets: NDArray[np.uint8]
    edits: NDArray[np.uint8]
    by_another: NDArray[np.uint8]
    shams: NDArray[np.uint8]

    def error(self, pictures: NDArray[np.uint8]) -> float:
        """The mean squared distance to the truth, where the edits change the picture."""
        changed = np.abs(self.targets.astype(int) - self.sources).max(-1) > CHANGED
        return float(np.square(pictures.astype(float) - self.targets)[changed].mean())


def load_editor(profile_name: str) -> OneStepEditor:
    profile = load_profile(profile_name).diffusion
    networks = load_networks(profile, "cpu")
    few_step = few_steps_of(profile, networks)
    assert few_step is not None
    assert isinstance(profile.instruct, OneStep)
    assert profile.instruct.time == TIME, "the time that the editors were trained at"
    return load_one_step(profile.instruct, few_step.networks)


def edit(editor: OneStepEditor, sources: list[Pixels], instructions: list[str]) -> NDArray[np.uint8]:
    items = [
        InstructItem(fitted(editor.networks, source), instruction, 0)
        for source, instruction in zip(sources, instructions, strict=True)
    ]
    images = [image for at in range(0, PAIRS, BATCH) for image in editor.edit(KEY, items[at : at + BATCH])]
    return np.stack([image for image in images if isinstance(image, np.ndarray)])


@pytest.fixture(scope="module", params=PROFILES)
def edited(request: pytest.FixtureRequest) -> Edited:
    domain: Domain = request.param
    pairs = [pair(domain, FIRST + EDITS * number, "calibration") for number in range(PAIRS)]
    draw = PICTURE_DOMAINS[domain].picture
    sources = [draw(chosen.source) for chosen in pairs]
    instructions = [chosen.instruction(seed) for seed, chosen in enumerate(pairs)]
    edit_sources = partial(edit, load_editor(PROFILES[domain]), sources)
    return Edited(
        np.stack(sources),
        np.stack([draw(chosen.target) for chosen in pairs]),
        edit_sources(instructions),
        edit_sources(instructions[1:] + instructions[:1]),
        edit_sources([SHAM_INSTRUCTION] * PAIRS),
    )


def test_an_edit_brings_the_picture_nearer_to_the_truth(edited: Edited) -> None:
    assert edited.error(edited.edits) < 0.8 * edited.error(edited.sources)


def test_the_instruction_matters(edited: Edited) -> None:
    assert edited.error(edited.edits) < 0.8 * edited.error(edited.by_another)


def test_a_sham_leaves_the_picture_nearly_as_it_is(edited: Edited) -> None:
    moved = np.square(edited.shams.astype(float) - edited.sources).mean()
    assert moved < 0.4 * np.square(edited.targets.astype(float) - edited.sources).mean()
