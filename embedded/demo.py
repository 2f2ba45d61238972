"""`make demo`: run one whole job on this machine, as a user would, with small models.

Two models under test are tested on 90 drawn street images and their counterfactuals. One has a planted weakness, and
the demo shows whether Contrafact finds it. It uses the public commands and prints each before it runs.

    python -m embedded.demo [--directory contrafact-demo] [--classes car,bus,truck] [--per-class 30]
    python -m embedded.demo --classes bus,car --per-class 44 --value weather=night     # smaller: one change
    python -m embedded.demo --domain roads [--images 60]     # segmenters, on driving scenes with masks
    python -m embedded.demo --domain roads --kind detection  # detectors, on driving scenes with boxes
    python -m embedded.demo --publish demo-suite             # its counterfactuals as a data set, as releases have it

Draw a job's first finding as one picture: source, null arm and counterfactual with their predictions.

Predictions of segmenters are painted over the images, those of detectors drawn around the objects: what is found has a
frame, what is missed a broken one, and what is not there a crossed one.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageColor, ImageDraw, ImageFont

from contrafact.cli import app
from contrafact.client import Client
from embedded.run import end_process, run_embedded
from gateway.report.thumbnails import paint_png
from shared.schemas.base import Kind
from shared.schemas.boxes import BOXED, COUNTED_OUTCOMES, Corners, Detected
from shared.schemas.effects import CellEffect
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import CounterfactualView, JobResults, ModelOpinion, ModelResults, PredictionView
from tinyworld.domain.names import add_domain
from tinyworld.objects.demo import write_demo
from tinyworld.roads import demo as roads_demo

SIDE, GAP, LINE, MARGIN = 256, 16, 22, 16
DETECTED = 0.5  # the least IoU of a detected class
LETTERS = 105  # per line below the pictures
INK, QUIET, RED = (28, 28, 30), (110, 110, 115), (176, 42, 32)
FOUND, MISSED, EXTRA = (60, 200, 90), (255, 60, 50), (255, 170, 0)
DASH = 6  # pixels
TASK = "classify the vehicle in a street photo"
CLASSES = ("car", "bus", "truck")
ROADS_TASK = "segment the road scene"
DETECTION_TASK = "detect vehicles and pedestrians"
DETECTORS = ("road-detector", "road-detector-night-pedestrian")
SCORE = 0.4  # of a box that counts
NIGHT = {
    "instruction": "show the scene at night",
    "factor": "weather",
    "value": "night",
    "phrase": "at night",
    "replaces": ["by day", "during the day", "at sunset"],
}
WEATHER = ("--design", "free", "--set", 'factors=["weather"]')
ATTRIBUTION = ("--attribution", "Pictures drawn by Contrafact, and their counterfactuals by its small models.")


def main() -> None:
    """Parse the command line and run the demo."""
    options = read_options()
    started = time.monotonic()
    if options.domain == "roads":
        run_roads_demo(options.directory, options.images, options.kind, options.publish)
    else:
        run_demo(options.directory, options.per_class, options.classes.split(","), options.value, options.publish)
    print(f"\n{time.monotonic() - started:.0f} seconds in all.")
    end_process()


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line, or of `arguments`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("contrafact-demo"), help="folder for all output")
    parser.add_argument("--classes", default=",".join(CLASSES), help="of the source images; both models know all three")
    parser.add_argument("--per-class", type=int, default=30, help="source images per class")
    parser.add_argument("--value", help="this change for every image, where a language model chooses otherwise")
    add_domain(parser)
    parser.add_argument("--images", type=int, default=60, help="driving scenes")
    parser.add_argument("--kind", choices=("segmentation", "detection"), default="segmentation", help="of the roads")
    parser.add_argument("--publish", type=Path, help="a new folder for the job's counterfactuals as a data set")
    return parser.parse_args(arguments)


def run_demo(
    directory: Path,
    per_class: int,
    classes: Sequence[str] = CLASSES,
    value: str | None = None,
    publish: Path | None = None,
) -> JobResults:
    """Draw the pictures, run the job, print the findings and write the report. Returns the job's results.

    `publish`: a new folder for the data set of its counterfactuals.
    """
    images = directory / "images"
    write_demo(images, classes, per_class)
    print(f"Drew {per_class * len(classes)} pictures into {images}, with their labels in manifest.csv.")
    changes = WEATHER if value is None else ["--design", "balanced", "--value", value]
    arguments = [str(images), "--labels", str(images / "manifest.csv"), "--task", TASK, *changes]
    return _run(directory, "tiny", arguments, publish)


def run_roads_demo(directory: Path, count: int, kind: Kind = "segmentation", publish: Path | None = None) -> JobResults:
    """The same on driving scenes: for segmenters, with masks, or for detectors, with boxes."""
    folder = roads_demo.write_demo(directory / "roads", roads_demo.demo_scenes(count))
    print(f"Drew {count} driving scenes into {folder}, with their {'boxes' if kind in BOXED else 'masks'}.")
    if kind in BOXED:
        truth = [str(folder / "images"), "--boxes", str(folder / "annotations.json"), "--score", str(SCORE)]
        models = [argument for name in DETECTORS for argument in ("--model", name)]
        night = ["--method", "instruct", "--set", f"instructions={json.dumps([NIGHT])}"]
        arguments = [*truth, "--task", DETECTION_TASK, *models, *night]
    else:
        arguments = [str(folder), "--masks", str(folder / "classes.json"), "--task", ROADS_TASK, *WEATHER]
    return _run(directory, "tiny-roads", arguments, publish)


def _run(directory: Path, profile: str, arguments: list[str], publish: Path | None) -> JobResults:
    """Run one job by `contrafact submit` on an embedded system with a shipped profile."""
    page = directory / "report.html"
    print("Starting gateway, worker and four model services in this process ...\n")
    with run_embedded(directory / "data", profile) as system:
        os.environ["CONTRAFACT_URL"] = system.base_url
        job = _print_and_run(["submit", *arguments, "--wait"]).splitlines()[0]
        _print_and_run(["report", job, "--out", str(page)])
        if publish is not None:
            _print_and_run(["suites", "create", job, "--name", publish.name])
            _print_and_run(["suites", "publish", publish.name, str(publish), "--licence", "Apache-2.0", *ATTRIBUTION])
        with contextlib.closing(Client(system.base_url)) as client:
            picture = draw_finding(client, job, directory / "finding.png")
            measured = client.results(job, {}, limit=1).metrics
    print(f"\nThe report, one page that needs nothing else:  {page}")
    if picture is not None:
        print(f"Its first finding in one picture:              {picture}")
    print("Run it again and it takes seconds, because every model call is recorded.")
    if measured is None:
        raise SystemExit(f"job {job} ended without results")
    return measured


def _print_and_run(arguments: list[str]) -> str:
    """Print a `contrafact` command, run it in this process, print and return what it writes to stdout."""
    print(f"$ contrafact {shlex.join(arguments)}", flush=True)
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        try:
            code = app(arguments, standalone_mode=False)
        except SystemExit as ended:
            code = ended.code
    print(written.getvalue(), end="", flush=True)
    if code:
        raise SystemExit(code)
    return written.getvalue()


def draw_finding(client: Client, job: str, path: Path) -> Path | None:
    """Draw a flipped counterfactual of the job's first weakness to `path`; None when the job found no weakness."""
    metrics = client.results(job, {}, limit=1).metrics
    if metrics is None:
        return None
    weaknesses = [(results, effect) for results in metrics.results for effect in results.findings]
    for results, effect in weaknesses:
        cell = effect.cell
        where = {"model": results.model, "class": cell.label, "factor": cell.factor, "value": cell.value}
        views = client.counterfactuals(job, {**where, "verdict": "accepted", "flipped": "true"})
        view = next((view for view in views if _shows(view, results.model, cell.label)), None)
        if view is not None:
            _draw(client, view, results, effect).save(path)
            return path
    return None


def _shows(view: CounterfactualView, model: str, label: str) -> bool:
    """Whether a model does worse on the counterfactual than on its null arm, in the class of a finding."""
    opinion = next(candidate for candidate in view.predictions if candidate.model == model)
    null, image = opinion.null_arm, opinion.counterfactual
    if not (view.image and view.null_image and null and image):
        return False
    return image.scores.get(label, 0.0) < null.scores.get(label, 0.0)


def _draw(client: Client, view: CounterfactualView, results: ModelResults, effect: CellEffect) -> Image.Image:
    assert view.image is not None
    assert view.null_image is not None
    opinion = next(candidate for candidate in view.predictions if candidate.model == results.model)
    columns = [
        ("source image", view.source.image, opinion.original),
        ("null arm: rendered, caption unchanged", view.null_image, opinion.null_arm),
        ("counterfactual", view.image, opinion.counterfactual),
    ]
    width = 2 * MARGIN + len(columns) * SIDE + (len(columns) - 1) * GAP
    sentences = (_change(view), f"{results.model}: {effect.sentence}")
    below = [line for text in sentences for line in wrap(_strip_tags(text), LETTERS)]
    canvas = Image.new("RGB", (width, 2 * MARGIN + SIDE + (3 + len(below)) * LINE), "white")
    draw = ImageDraw.Draw(canvas)
    for number, (title, digest, prediction) in enumerate(columns):
        left = MARGIN + number * (SIDE + GAP)
        picture = Image.open(io.BytesIO(_paint(client, digest, prediction, results)), formats=("PNG",)).convert("RGB")
        enlarged = picture.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        if prediction is not None and prediction.detected is not None:
            draw_boxes(enlarged, prediction.detected, SIDE / picture.width, SIDE / picture.height)
        canvas.paste(enlarged, (left, MARGIN))
        draw.text((left, MARGIN + SIDE + 6), title, fill=QUIET, font=ImageFont.load_default(13))
        text, colour = _verdict(prediction, opinion, view.source.ground_truth, effect.cell.label)
        draw.text((left, MARGIN + SIDE + 6 + LINE), text, fill=colour, font=ImageFont.load_default(17))
    top = MARGIN + SIDE + 6 + 5 * LINE // 2
    for line, text in enumerate(below):
        draw.text((MARGIN, top + line * LINE), text, fill=INK, font=ImageFont.load_default(15))
    return canvas


def draw_boxes(image: Image.Image, detected: Detected, across: float, down: float) -> None:
    """Draw objects and extra boxes onto an enlarged image; `across` and `down` are how often it was enlarged."""
    draw = ImageDraw.Draw(image)

    def on_image(box: Corners) -> Corners:
        return (box[0] * across, box[1] * down, box[2] * across, box[3] * down)

    for item in detected.objects:
        if item.outcome == "found":
            draw.rectangle(on_image(item.box), outline=FOUND, width=2)
        elif item.outcome in COUNTED_OUTCOMES:
            _draw_dashed(draw, on_image(item.box))
    for extra in detected.extras:
        left, top, right, bottom = on_image(extra.box)
        draw.rectangle((left, top, right, bottom), outline=EXTRA)
        draw.line((left, top, right, bottom), fill=EXTRA)
        draw.line((left, bottom, right, top), fill=EXTRA)


def _draw_dashed(draw: ImageDraw.ImageDraw, box: Corners) -> None:
    left, top, right, bottom = box
    for x in range(int(left), int(right), 2 * DASH):
        for y in (top, bottom):
            draw.line((x, y, min(x + DASH, right), y), fill=MISSED, width=2)
    for down in range(int(top), int(bottom), 2 * DASH):
        for side in (left, right):
            draw.line((side, down, side, min(down + DASH, bottom)), fill=MISSED, width=2)


def _paint(client: Client, digest: str, prediction: PredictionView | None, results: ModelResults) -> bytes:
    image = client.image(digest)
    if prediction is None or prediction.map is None or results.segmentation is None:
        return image
    colours = [ImageColor.getrgb(colour)[:3] for colour in results.segmentation.colours]
    return paint_png(image, client.image(prediction.map), colours)


def _verdict(
    prediction: PredictionView | None, opinion: ModelOpinion, truth: str | None, label: str | None
) -> tuple[str, tuple[int, int, int]]:
    if prediction is None:
        return "", INK
    if prediction.map is not None:
        overlap = prediction.scores.get(label or ALL_CLASSES, prediction.scores.get(ALL_CLASSES))
        if overlap is None:
            return "", INK
        return f"{label or 'all classes'}: IoU {overlap:.0%}", INK if overlap >= DETECTED else RED
    if prediction.detected is not None:
        counted = [item for item in prediction.detected.objects if item.outcome in COUNTED_OUTCOMES]
        objects = [item for item in counted if label in (None, ALL_CLASSES, item.label)]
        found = sum(item.outcome == "found" for item in objects)
        return f"{label or ALL_CLASSES}: {found} of {len(objects)} found", INK if found == len(objects) else RED
    right = prediction.predicted == (truth or (opinion.original.predicted if opinion.original else None))
    return (
        f"{'right' if right else 'WRONG'}: {prediction.predicted} {prediction.probability:.0%}",
        INK if right else RED,
    )


def _change(view: CounterfactualView) -> str:
    changes = ", ".join(f"“{change.from_phrase}” → “{change.to_phrase}”" for change in view.changes)
    return f"{changes}   in   {view.caption}"


def _strip_tags(text: str) -> str:
    """Text in the characters of Pillow's default font."""
    return text.replace("→", "to").replace("−", "-").replace("`", "")


if __name__ == "__main__":
    main()
