"""Set LANCE's thresholds for the shipped scorer: `python -m research.calibrate.edits --write`.

Like `research.calibrate.checks`, but for images edited by inversion. Each edit is rendered well, and broken in the
same four ways; the edits cycle through the profile's self-attention fractions. `--write` puts the thresholds into the
shipped profile `tiny`, as defaults of the methods that sweep.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import cv2
import torch

from gateway.methods import METHODS
from gateway.methods.checks import EDITED_CHECKS, Pictures, check_images
from gateway.methods.counterfactual import MethodImage, Thresholds
from gateway.methods.inverted import SweepParameters, edit_request
from gateway.methods.lance import LanceParameters
from gateway.model_services.clients import ModelServices
from research.calibrate.broken import (
    RequestedImage,
    Trial,
    calibration_edits,
    is_recognised,
    requested_images,
    without_object,
)
from research.calibrate.thresholds import held_out_scores, table, thresholds
from research.judges.oracles.objects import judge
from research.judges.trials import TASK, payload, source_picture
from research.pictures.rendered_once import Pixels
from research.system.spawn_services import spawn_services
from shared.media.images import decode
from shared.profiles.profile import SHIPPED, load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import PromptEdit
from tinyworld.objects.proposals import Proposal

AT_ONCE = 4  # edits, so that they share batches
NOTE = "# Made by `python -m research.calibrate.edits --write`; they belong to the scorer's weights.\n"


def trials(services: ModelServices, parameters: LanceParameters, edits: int) -> tuple[list[Trial], Mapping[str, int]]:
    """Scored images of all kinds for `edits` edits, and how many of each kind the oracles did not recognise."""
    scored: list[Trial] = []
    unlike: Counter[str] = Counter()
    numbered = list(enumerate(calibration_edits(edits)))
    services.revision("diffusion_service")  # wait for it here, not in every thread
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for edited_images in pool.map(lambda drawing: list(_edited_images(services, parameters, *drawing)), numbered):
            edited_images += [
                replace(
                    drawing,
                    request=replace(drawing.request, kind="gone"),
                    image=without_object(drawing.request, drawing.image),
                )
                for drawing in edited_images
                if drawing.request.kind == "good"
            ]
            for drawing, read in zip(edited_images, judge([drawing.image for drawing in edited_images]), strict=True):
                if is_recognised(drawing.request, read):
                    scored.append(_score(services, drawing))
                else:
                    unlike[drawing.request.kind] += 1
    return scored, unlike


@dataclass(frozen=True, slots=True)
class _EditedImage:
    """A rendered image with its request, and the mask of its pixels that must not change."""

    request: RequestedImage
    image: Pixels
    keep_mask: ImagePayload | None


def _edited_images(
    services: ModelServices, parameters: LanceParameters, number: int, proposal: Proposal
) -> Iterator[_EditedImage]:
    """The images of an edit, each by editing its source; images of one source share a request.

    Each source is inverted under a caption of its own class, which differs for images of kind "class".
    """
    fraction = parameters.self_fractions[number % len(parameters.self_fractions)]
    label = proposal.scene.label
    by_class: dict[str, list[RequestedImage]] = defaultdict(list)
    for request in requested_images(proposal):
        by_class[request.shows.label].append(request)
    for shown_label, trials_of_class in by_class.items():
        caption = re.sub(rf"\b{label}\b", shown_label, proposal.edit.caption)
        prompts = [
            PromptEdit(prompt=a.drawing.prompt, cross_fraction=parameters.cross_fraction) for a in trials_of_class
        ]
        reply = services.edit(
            edit_request(payload(trials_of_class[0].drawing.source), parameters, caption, prompts, [fraction])
        )
        for request, [image] in zip(trials_of_class, reply.images, strict=True):
            if image is not None:
                yield _EditedImage(request, decode(image.png), reply.keep_mask)


def _score(services: ModelServices, edited_image: _EditedImage) -> Trial:
    proposal = edited_image.request.proposal
    source = MethodImage("", payload(source_picture(proposal.scene)), proposal.scene.label)
    pictures = Pictures([payload(edited_image.image)], edited_image.keep_mask)
    ((_, scores),) = check_images(services, source, TASK, pictures, [proposal.edit], {}, EDITED_CHECKS)
    return Trial(proposal.scene.geometry_seed, edited_image.request.kind, proposal.edit, scores)


SWEPT = tuple(name for name, method in METHODS.items() if issubclass(method.parameters, SweepParameters))


def toml(chosen: Thresholds, methods: Sequence[str] = SWEPT, note: str = NOTE) -> str:
    """The profile's tables of thresholds, for each of the methods (default: those that sweep)."""
    tables = [
        f"[methods.{name}.thresholds.{check}]\n" + "".join(f"{factor} = {value}\n" for factor, value in values.items())
        for name in methods
        for check, values in chosen.items()
    ]
    return note + "\n".join(tables)


def with_thresholds(profile: str, tables: str, methods: Sequence[str] = SWEPT, note: str = NOTE) -> str:
    """A profile's text, with the methods' old tables of this kind replaced by these tables at its end."""
    header = rf"methods\.(?:{'|'.join(methods)})\.thresholds"
    others = re.sub(rf"(?ms)^\[{header}.*?(?=^(?:#|\[(?!{header}))|\Z)", "", profile.replace(note, ""))
    closed = re.sub(r"\n{3,}", "\n\n", others)  # where the tables stood
    return f"{closed.rstrip()}\n\n{tables}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edits", type=int, default=120, help="edits, each made well and broken in four ways")
    parser.add_argument("--write", action="store_true", help="put the thresholds into shared/profiles/tiny.toml")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    parameters = LanceParameters.model_validate(load_profile("tiny").methods.get("lance", {}))
    with spawn_services("tiny", ["diffusion_service", "evaluator_service"]) as services:
        scored, unlike = trials(services, parameters, arguments.edits)
    directed = [trial for trial in scored if "direction" in trial.scores]
    print(f"{len(directed)} trials; left out, as the oracles do not see what was asked for:", dict(unlike))
    print(f"{len(scored) - len(directed)} without a direction, which are refused as `no change`")
    print(*table(held_out_scores(directed, EDITED_CHECKS)), sep="\n")
    tables = toml(thresholds(directed, EDITED_CHECKS))
    print("\n" + tables)
    if arguments.write:
        path = SHIPPED / "tiny.toml"
        path.write_text(with_thresholds(path.read_text(), tables))


if __name__ == "__main__":
    main()
