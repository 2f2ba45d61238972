"""The source images and edits that the arms render, and what a judge of the results tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np

from gateway.methods.counterfactual import Edit
from shared.media.images import Pixels
from tinyworld.objects.proposals import Proposal, proposals
from tinyworld.objects.render import render
from tinyworld.objects.world import Scene, sample_scene

FIRST = 90_000  # the first final-test scene; no model card and no threshold uses the scenes from here on
Method = Literal["lance", "dillema"]


@dataclass(frozen=True, slots=True)
class Source:
    """A scene's picture and its edits, all of the same caption."""

    scene: Scene
    image: Pixels
    proposals: tuple[Proposal, ...]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits of the caption."""
        return tuple(proposal.edit for proposal in self.proposals)

    @property
    def caption(self) -> str:
        """The caption of the picture, under which it is inverted."""
        return self.edits[0].caption

    @property
    def prompts(self) -> list[str]:
        """The new captions."""
        return [edit.new_caption for edit in self.edits]


def sources(count: int, edits: int) -> list[Source]:
    """`count` scenes of the split "final-test" whose caption states enough fields, with `edits` edits each."""
    chosen_sources: list[Source] = []
    index = FIRST
    while len(chosen_sources) < count:
        scene = sample_scene("final-test", index)
        random = np.random.default_rng((0xC057, index))
        proposed = list(proposals(scene, random))
        if len(proposed) >= edits:
            chosen = random.choice(len(proposed), edits, replace=False)
            picture = np.ascontiguousarray(render(scene).image)
            chosen_sources.append(Source(scene, picture, tuple(proposed[i] for i in chosen)))
        index += 1
    return chosen_sources


class Verdicts(NamedTuple):
    """How many of a source's counterfactuals the checks accept, and how many are good by the oracles."""

    accepted: int
    good: int


class Judge(Protocol):
    """What judges the counterfactuals of a source."""

    def verdicts(
        self, method: Method, fractions: Sequence[float], source: Source, pictures: Sequence[Sequence[Pixels]]
    ) -> Verdicts:
        """The verdicts on pictures per edit, one for each fraction; LANCE's choice stands for a sweep."""
        ...
