"""Repeat a paper's experiment on its data set, with the profile of a running Contrafact.

python -m research.papers lance IMAGENET/val --classes LOC_synset_mapping.txt --hard MASKS/val --out runs/lance
python -m research.papers dillema IMAGENET/val --classes LOC_synset_mapping.txt --repair --out runs/dillema
python -m research.papers dillema-roads SHIFT/discrete/images/val/front --model mine=FOLDER --repair --out runs/roads

A pilot of a few images measures the cost and asks before the rest starts. Repeat the command after an interruption: it
goes on where it stopped. OUT gets `tables.md`, `results.json` and `report.html`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from contrafact import Client, Problem
from research.papers.folders import SourceFile, imagenet, read_class_list, sample, shift
from research.papers.jobs import add_models, cost_of, run_job, run_repair, seconds_of, spec_of
from research.papers.kits import KITS, Kit
from research.papers.printed import Measured, printed_table
from research.papers.realism import distances
from research.papers.retraining import pixels_found_table, repair_table
from research.papers.tables import dillema_tables, lance_tables, road_tables
from shared.schemas.jobs import JobDetail
from shared.schemas.repairs import RepairRequest
from shared.schemas.results import JobResults


def main() -> None:
    """The command."""
    options = _options()
    kit = KITS[options.kit]
    try:
        with closing(Client(options.url, os.environ.get("CONTRAFACT_API_KEY"))) as client:
            run(client, kit, options)
    except (Problem, RuntimeError, ValueError, OSError) as error:
        sys.exit(f"research.papers: {error}")


def run(client: Client, kit: Kit, options: argparse.Namespace) -> None:
    """Models, pilot, job, tables."""
    classes = read_class_list(options.classes) if options.classes else None
    files = _files(kit, options, classes)
    models = dict(options.model) or dict(kit.models)
    add_models(client, models, None if classes is None else list(classes.values()), kit)
    spec = spec_of(kit, client, list(models), options.seed)
    pilot = files[:: max(1, len(files) // options.pilot)][: options.pilot]  # of every class as far as they go
    if len(pilot) < len(files):
        job, results = run_job(client, spec, pilot, "pilot")
        print(f"{kit.title}: {cost_of(job, results, len(files))}", file=sys.stderr)
        if not (options.yes or input("Start? [y/N] ").strip().lower() == "y"):
            return
    job, results = run_job(client, spec, files, kit.title)
    write(client, kit, job, results, options)


def _files(kit: Kit, options: argparse.Namespace, classes: dict[str, str] | None) -> list[SourceFile]:
    most = options.most or kit.most
    if kit.masks is not None:
        return sample(shift(options.images), most, options.seed)
    if classes is None:
        raise ValueError("--classes FILE names ImageNet's classes by synset; Kaggle's LOC_synset_mapping.txt does")
    return sample(imagenet(options.images, classes, options.hard), most, options.seed)


def write(client: Client, kit: Kit, job: JobDetail, results: JobResults, options: argparse.Namespace) -> None:
    """Write the paper's numbers beside these, the tables, all results, and the report; then retrain, and write again.

    So the tables are there even if there is too little to retrain on.
    """
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "results.json").write_text(results.model_dump_json(indent=1) + "\n", encoding="utf-8")
    (options.out / "report.html").write_bytes(client.report(job.id))
    edits = list(client.counterfactuals(job.id, {})) if options.kit == "lance" else []
    measured = Measured(
        results,
        distances=distances(client, edits, options.features) if edits and options.features else {},
        proposed=Counter((edit.method, change.factor) for edit in edits for change in edit.changes),
        studies=[(study.request, client.study_results(study.id)) for study in client.studies(job.id).studies],
        hours=seconds_of(job) / 3600,
    )
    page = options.out / "tables.md"
    page.write_text(tables_page(kit, measured, options.seed), encoding="utf-8")
    print(page)
    if options.repair:
        training = {"recipe": kit.recipe} if options.recipe else {"steps": options.steps}
        requests = [RepairRequest.model_validate({"model": model, **training}) for model in job.models]
        repairs = [run_repair(client, job.id, request) for request in requests]
        page.write_text(tables_page(kit, replace(measured, repairs=repairs), options.seed), encoding="utf-8")


def tables_page(kit: Kit, measured: Measured, seed: int) -> str:
    """The paper's numbers beside those of the job, then its tables, as Markdown."""
    results = measured.results
    departures = "\n".join(f"* {departure}" for departure in kit.departures)
    head = (
        f"# {kit.title}\n\n{results.sources - results.sources_failed} source images of {results.sources}, profile "
        f"`{results.made.profile}`, seed {seed}, job {results.made.job}.\n\n{departures}"
    )
    if kit.masks is not None:
        tables = road_tables(results)
    else:
        tables = dillema_tables(results) if kit is KITS["dillema"] else lance_tables(results, measured.distances)
    things = [mask_class.name for mask_class in kit.masks.classes if mask_class.thing] if kit.masks else []
    won = [repair_table(measured.repairs), pixels_found_table(measured.repairs, things)]
    parts = [head, printed_table(kit.printed, measured), tables, *(table for table in won if table)]
    return "\n\n".join(parts) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", choices=tuple(KITS))
    parser.add_argument("images", type=Path, help="the data set's folder")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--classes", type=Path, help="ImageNet's class names by synset")
    parser.add_argument("--hard", type=Path, help="Hard ImageNet's masks: only the images that have one")
    parser.add_argument("--most", type=int, help="source images of each class or sequence; default: the paper's")
    parser.add_argument(
        "--model",
        type=_split_name,
        action="append",
        default=[],
        help="NAME=FOLDER or NAME=HUB_ID, in place of the paper's",
    )
    parser.add_argument("--features", help="CLIP weights for KID: a Hub id or a folder; without it KID is left out")
    parser.add_argument("--repair", action="store_true", help="retrain each model on its counterfactuals, and judge it")
    parser.add_argument("--steps", type=int, default=200, help="of the retraining")
    parser.add_argument("--recipe", action="store_true", help="retrain as the paper prints, in place of --steps")
    parser.add_argument("--pilot", type=_positive, default=8, help="source images that measure the cost")
    parser.add_argument("--yes", action="store_true", help="start without asking")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--url", default=os.environ.get("CONTRAFACT_URL", "http://127.0.0.1:8000"))
    return parser.parse_args()


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of images, 1 or more")
    return int(text)


def _split_name(text: str) -> tuple[str, str]:
    name, equals, where = text.partition("=")
    if not (name and equals and where):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER or NAME=HUB_ID")
    return name, where


if __name__ == "__main__":
    main()
