"""Measure the editor that follows instructions on objects, and which of its edits the checks accept.

    python -m research.measure.instruct --count 1000 --out runs/instruct-measured
    python -m research.measure.instruct --weights runs/editor --wording "phrases too" --out runs/instruct-withheld

Sources and edits are those of `research.measure.counterfactuals`: each has its own final-test scene and changes one
field, the fields in turn. The instruction has the usual wording, or one that never occurs in training. Its null arm is
the same source under a sham instruction. Both arms pass DILLEMA's checks at the profile's thresholds. Report, contact
sheets, records and resuming are as there. The report ends with the goals: label kept, edit shown and others unchanged
among the accepted, and network evaluations beside DILLEMA's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import cv2
import torch

from gateway.methods.dillema import DillemaParameters
from research.datasets.instructed_pictures import WORDINGS
from research.judges.editors import EDITORS, Draw, EditorResult, Kind, parameters_of
from research.judges.records import Record, records
from research.judges.trials import Studio, source_picture
from research.measure.counterfactual_report import report
from research.measure.counterfactuals import FIRST, Measurement, draw_records, edits_in_turn, next_edit, sheets
from research.networks.instructed_unet import INSTRUCT
from research.pictures.rendered_once import Pixels
from research.statistics.rates import rate_text
from research.system.folders import weights_of
from research.train.instructed_editor import InstructedEditor
from shared.profiles.profile import Profile, load_profile
from shared.seeds import derive_seed
from tinyworld.domain.descriptions import Withheld
from tinyworld.domain.names import Domain, add_domain
from tinyworld.objects.proposals import FIELDS, Proposal

KINDS: tuple[Kind, Kind] = ("edit", "null")
EVALUATIONS = 1  # of the UNet per image
SHAM = "Keep the image exactly as it is."
LABEL_KEPT, EDIT_SHOWN, OTHERS_UNCHANGED, OF_DILLEMA = 0.97, 0.9, 0.9, 1 / 3  # the goals


def draw_by_instruction(editor: InstructedEditor, studio: Studio, wording: Withheld) -> Draw:
    """Draws edits by instructions and, for each, its null arm; checks both."""

    def draw(proposals: Sequence[tuple[int, Proposal]]) -> list[EditorResult]:
        edits = [proposal for _, proposal in proposals]
        sources = [source_picture(edit.scene) for edit in edits]
        images = editor.edit(sources, [instruction_of(edit, wording) for edit in edits])
        shams = editor.edit(sources, [SHAM] * len(edits))
        return [
            result
            for (number, edit), source, image, sham in zip(proposals, sources, images, shams, strict=True)
            for result in arms(number, edit, source, image, sham)
        ]

    def arms(number: int, proposal: Proposal, source: Pixels, image: Pixels, sham: Pixels) -> Iterator[EditorResult]:
        verdicts = studio.check(proposal.scene, source, [image, sham], [proposal.edit, None])
        for kind, drawn_image, (verdict, scores) in zip(KINDS, (image, sham), verdicts, strict=True):
            yield EditorResult(number, kind, source, proposal.edit, drawn_image, verdict, scores, EVALUATIONS)

    return draw


def instruction_of(proposal: Proposal, wording: Withheld) -> str:
    """The edit of a proposal as an instruction; the same in every run."""
    seed = derive_seed("instruction", proposal.scene.geometry_seed)
    value = str(getattr(proposal.target, proposal.field))
    return WORDINGS["objects"].instruction(proposal.scene, proposal.field, value, seed, withheld=wording)


def goal_lines(done: Sequence[Record], evaluations: int, dillema: Mapping[str, int]) -> Iterator[str]:
    """The goals with their figures. `evaluations` are the editor's per image, `dillema` those of its ways to render."""
    accepted = [record for record in done if record.arm == "edit" and record.accepted]
    goals: tuple[tuple[str, float, Callable[[Record], bool]], ...] = (
        ("label kept", LABEL_KEPT, lambda record: record.kept),
        ("edit shown", EDIT_SHOWN, lambda record: record.shown),
        ("all others unchanged", OTHERS_UNCHANGED, lambda record: not record.changed_besides),
    )
    for name, goal, test in goals:
        right = sum(map(test, accepted))
        verdict = "met" if accepted and right >= goal * len(accepted) else "not met"
        yield f"{name} among accepted: {rate_text(right, len(accepted))}, goal {goal:.0%}: {verdict}"
    for way, others in dillema.items():
        verdict = "met" if evaluations <= OF_DILLEMA * others else "not met"
        yield f"network evaluations per image: {evaluations}, DILLEMA's {way} {others}, goal a third: {verdict}"


def dillema_evaluations(profile: Profile) -> dict[str, int]:
    """DILLEMA's network evaluations per image, by the weights that it renders with."""
    parameters = DillemaParameters.model_validate(profile.methods.get("dillema", {}))
    guided = 2 if parameters.guidance > 1 else 1
    few = {} if profile.diffusion.few_step is None else {"few-step weights": profile.diffusion.few_step.steps}
    return {"base weights": guided * parameters.steps} | few


def editor_of(folder: Path, domain: Domain) -> InstructedEditor:
    """The published editor in a folder. Ends the command if there is none."""
    try:
        return InstructedEditor.load(folder, domain)
    except OSError as error:
        sys.exit(f"{error}; make the weights by python -m research.train.publish_instruct --domain {domain}")


def main() -> None:
    """The command for `--domain objects`."""
    args = _arguments()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    profile = load_profile(args.profile)
    parameters = DillemaParameters.model_validate(parameters_of(EDITORS["dillema"], profile))
    proposals = list(edits_in_turn(FIRST, args.count, args.fields))
    editor = editor_of(args.weights, "objects")
    done = records(args.out)
    if next_edit(done) < len(proposals):
        draw = draw_by_instruction(editor, Studio(profile, parameters), args.wording)
        done += draw_records(Measurement("instruct", profile, draw, args.out), done, proposals, args)
    text = report(done, {"method": "instruct", "steps": EVALUATIONS, "wording": args.wording})
    text += "\n".join(["", "== goals", *goal_lines(done, EVALUATIONS, dillema_evaluations(profile)), ""])
    (args.out / "report.txt").write_text(text)
    print(text)
    print("look at", *(path.name for path in sheets(args.out, done)), "in", args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--count", type=int, default=1_000, help="edits to draw")
    parser.add_argument("--fields", nargs="+", choices=FIELDS, default=FIELDS)
    parser.add_argument("--weights", type=Path, default=weights_of("objects") / "diffusion" / INSTRUCT)
    parser.add_argument("--wording", choices=get_args(Withheld), default="nothing", help="what no training showed")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--profile", default="tiny")
    return parser.parse_args()
