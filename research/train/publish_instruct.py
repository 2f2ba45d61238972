"""Write an editor that follows instructions beside its generator, or show its edits.

    python -m research.train.publish_instruct    # averaged weights of runs/instruct -> weights/diffusion/instruct
    python -m research.train.publish_instruct --domain roads    # runs/instruct-roads -> weights/roads/...
    python -m research.train.publish_instruct --dry --sheet runs/sheet.png    # source | sham | edit | truth

Works while the training runs: it reads the last checkpoint.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from diffusers import UNet2DConditionModel

from research.datasets.captioned_pictures import PICTURE_DOMAINS
from research.datasets.instructed_pictures import EDITS, pair
from research.networks.instructed_unet import INSTRUCT, add_lora, few_step_unet, rank_of, save_editor
from research.pictures.rendered_once import Pixels
from research.pictures.sheet import contact_sheet
from research.system.folders import RUNS, weights_of
from research.train.instruct import RECORD, TIME
from research.train.instructed_editor import InstructedEditor
from research.train.loop import Progress, run_name
from research.train.model_card import title_of, write_card
from tinyworld.domain.names import Domain, add_domain

FIRST = 1_000_000  # the first pair of the split "calibration" on a sheet


def load_averaged(run: str, domain: Domain) -> tuple[UNet2DConditionModel, Progress]:
    """The averaged weights of a run's last checkpoint, its LoRA not merged. Raises OSError if there is none."""
    state = torch.load(RUNS / run / "checkpoint.pt", weights_only=True, map_location="cpu")
    unet = few_step_unet(weights_of(domain) / "diffusion")
    add_lora(unet, rank_of(state["average"]))
    unet.load_state_dict(state["average"])
    step, seconds, loss = state["at"]
    return unet.eval(), Progress(step, round(seconds, 1), round(loss, 4))


def publish(unet: UNet2DConditionModel, folder: Path, record: dict[str, object], progress: Progress) -> None:
    """Write the editor into a folder, with a card. `record` is what the training wrote beside its checkpoint."""
    domain = str(record["domain"])
    save_editor(unet, folder, {"time": TIME, "steps": 1, "guidance": 1.0})
    write_card(
        folder,
        title=title_of("tinyworld editor that follows instructions", domain),
        text=(
            "A LoRA of the few-step UNet of this folder's generator. The UNet sees the source's latents in place of "
            f'noise at time {TIME} and predicts their change (`engine = "one-step"`), in one evaluation. It learnt '
            "from renderer counterfactuals of the generator's split, without the withheld tenth of combinations."
            + _earlier(record)
        ),
        command=f"{record['command']}; python -m research.train.publish_instruct"
        + (f" --domain {domain}" if domain != "objects" else ""),
        results=asdict(progress),
        record={
            **record,
            "split": "generator",
            "targets per source": EDITS,
            "withheld combinations seen": 0,
            "seed": 0,
        },
    )


def _earlier(record: Mapping[str, object]) -> str:
    """The training of the editor that a run began with."""
    earlier = record.get("started from")
    if not isinstance(earlier, dict):
        return ""
    steps = earlier["results"]["steps"]
    return f" It began with the weights of an earlier editor: {steps:,} steps of `{earlier['command']}`."


def write_sheet(editor: InstructedEditor, domain: Domain, path: Path, count: int = 24) -> None:
    """Source, sham edit, edit and truth of the first pairs of a series that no model was trained on."""
    pairs = [pair(domain, FIRST + EDITS * number, "calibration") for number in range(count)]
    draw = PICTURE_DOMAINS[domain].picture
    sources = [draw(edit.source) for edit in pairs]
    instructions = [edit.instruction(seed) for seed, edit in enumerate(pairs)]
    shams = editor.edit(sources, ["Keep the image exactly as it is."] * count)
    edited = editor.edit(sources, instructions)
    pictures: list[tuple[Pixels, str]] = []
    for row, edit in enumerate(pairs):
        pictures += [
            (sources[row], f"{edit.field} {getattr(edit.source, edit.field)}"),
            (shams[row], "sham"),
            (edited[row], instructions[row]),
            (draw(edit.target), "truth"),
        ]
    contact_sheet(pictures, 8, path)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_domain(parser)
    parser.add_argument("--run", help="folder under runs/, else the domain's")
    parser.add_argument("--sheet", type=Path)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--out", type=Path, help="folder for the weights, else the shipped one")
    parser.add_argument("--dry", action="store_true", help="write no weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    domain: Domain = args.domain
    run = args.run or run_name("instruct", domain, None)
    unet, progress = load_averaged(run, domain)
    record = json.loads((RUNS / run / RECORD).read_text())
    print(progress)
    if args.sheet:
        write_sheet(InstructedEditor.of(unet, domain), domain, args.sheet, args.count)
    if not args.dry:
        publish(unet, args.out or weights_of(domain) / "diffusion" / INSTRUCT, record, progress)


if __name__ == "__main__":
    main()
