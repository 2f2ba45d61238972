"""`contrafact submit`: start a job over images and print its id.

Background images of the command line: uploads them, and names them in the parameters of method `compose`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import JsonValue
from rich.console import Console

from contrafact import plan_text
from contrafact.client import Client
from contrafact.command_line import URL, Json, Key, Url, messages, open_client, print_output
from contrafact.job_files import (
    is_one_archive,
    method_choices,
    parse_pair,
    plan_job,
    spec_of,
    submit_job,
    upload_images,
)
from contrafact.progress_display import follow_job, print_findings, print_page, show_progress
from contrafact.testset_files import gather
from shared.problems import NotReady
from shared.schemas.boxes import BOXED, BoxSpec
from shared.schemas.designs import DesignKind
from shared.schemas.diffusion import MOST_BACKGROUNDS
from shared.schemas.jobs import JobDetail, MethodChoice, ModelView
from shared.schemas.questions import ASKED, QuestionSpec

METHOD = "compose"
Images = Annotated[list[Path], typer.Argument(exists=True, help="image files, folders, or one zip or tar")]
Task = Annotated[str, typer.Option(help="what your model does, in a sentence")]
Labels = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="CSV (file,label,group) or JSON Lines")]
Methods = Annotated[list[str] | None, typer.Option(help="default: the profile's")]
Models = Annotated[list[str] | None, typer.Option(help="model under test; default: the profile's")]
NoModels = Annotated[bool, typer.Option("--no-models", help="only generate")]
ReferenceModels = Annotated[
    list[str] | None,
    typer.Option("--reference-model", help="not under test: a weakness where all of these fail, too, is suspect"),
]
Parameters = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="parameter (METHOD.NAME=VALUE with several)")
]
LabelMap = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LABEL=CLASS|FILE", help="map your label to the model's class; a file has a pair on each line"
    ),
]
NoLabels = Annotated[bool, typer.Option("--no-labels", help="ignore folder names; test without ground truth")]
GroupBy = Annotated[
    Literal["image", "folder"],
    typer.Option(help="folder: the images of a folder count as one, as for frames of a video"),
]
Design = Annotated[
    DesignKind | None,
    typer.Option(
        help="balanced: every image gets the same changes; free: the language model chooses those of each image; "
        "adaptive: most renderings go where models seem to fail. Default: balanced, but free with the papers' profiles",
        show_default=False,
    ),
]
Values = Annotated[
    list[str] | None,
    typer.Option(
        "--value",
        metavar="FACTOR=VALUE",
        help="change of every image, such as weather=night; default: chosen for the job",
    ),
]
Budget = Annotated[
    int | None, typer.Option(metavar="N", help="most renderings of a method, in a balanced or adaptive design")
]
Masks = Annotated[
    Path | None, typer.Option(help="JSON of the spec's `masks`: what the masks in the folder `masks` mean")
]
Boxes = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        help="COCO JSON, YOLO's labels and data.yaml, VOC, or instance masks; default for detectors: beside the images",
    ),
]
Scores = Annotated[
    list[str] | None,
    typer.Option(
        "--score",
        metavar="SCORE|CLASS=SCORE|best",
        help="least score of a detector's box that counts; default: 0.5; best: chosen on the originals",
    ),
]
ObjectMasks = Annotated[
    bool, typer.Option("--object-masks", help="the folder `masks` has the objects for method compose, no ground truth")
]
Backgrounds = Annotated[
    Path | None,
    typer.Option(exists=True, file_okay=False, help="backgrounds for method compose; subfolders name their values"),
]
Calibration = Annotated[
    str | None, typer.Option(metavar="DATA", help="data set similar to yours on which the checks were calibrated")
]
OutsideDomain = Annotated[
    bool,
    typer.Option("--outside-domain", help="test images that the profile does not know, as tiny no photographs"),
]
People = Annotated[
    Literal["refuse", "allow"],
    typer.Option("--protected-characteristics", help="edits of people's gender, age, ...; allow: you answer for use"),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="start nothing; print the plan and the power")]
IdempotencyKey = Annotated[str | None, typer.Option("--key", help="idempotency key; default: derived from the request")]
Repeat = Annotated[bool, typer.Option("--again", help="start another job even if the same request has started one")]
Wait = Annotated[bool, typer.Option("--wait", help="follow the job, then print its findings")]


def submit(
    images: Images,
    task: Task,
    labels: Labels = None,
    method: Methods = None,
    model: Models = None,
    no_models: NoModels = False,
    reference_model: ReferenceModels = None,
    parameter: Parameters = None,
    label_map: LabelMap = None,
    no_labels: NoLabels = False,
    group_by: GroupBy = "image",
    design: Design = None,
    value: Values = None,
    budget: Budget = None,
    masks: Masks = None,
    boxes: Boxes = None,
    score: Scores = None,
    object_masks: ObjectMasks = False,
    backgrounds: Backgrounds = None,
    calibration: Calibration = None,
    outside_domain: OutsideDomain = False,
    protected_characteristics: People = "refuse",
    seed: int = 0,
    dry_run: DryRun = False,
    idempotency_key: IdempotencyKey = None,
    again: Repeat = False,
    wait: Wait = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Start a job and print its id."""
    with open_client(url, api_key) as client:
        methods = method_choices(parameter or [], method or [], lambda: client.methods().methods)
        methods = with_backgrounds(client, methods, backgrounds, messages, dry_run=dry_run)
        models = [] if no_models else model
        views = [] if models == [] else _models(client)
        classes = {name for view in views for name in view.classes}
        chosen = [view for view in views if (view.name in models if models else view.default)]
        of_detectors = not no_labels and _are_detectors(chosen)
        spec = spec_of(
            task, methods, models, label_map or [], seed, no_labels, calibration, masks, group_by,
            reference_model or (), design, value or (), budget, object_masks, outside_domain, protected_characteristics,
            _boxes(images, labels, boxes or (), score or (), of_detectors=of_detectors),
            QuestionSpec() if chosen and all(view.kind in ASKED for view in chosen) else None,
        )  # fmt: skip
        if dry_run:
            plan = plan_job(client, spec, images, labels, classes, messages, boxes or ())
            print_output(plan.model_dump_json() if as_json else plan_text.plan(plan))
            return
        key = idempotency_key or (uuid.uuid4().hex if again else None)
        _finish(client, submit_job(client, spec, images, labels, classes, key, messages, boxes or ()), wait, as_json)


def _boxes(
    images: Sequence[Path], labels: Path | None, boxes: Sequence[Path], score: Sequence[str], *, of_detectors: bool
) -> BoxSpec | None:
    """How boxes are counted, if they are the ground truth: they are named, or lie beside the images of detectors."""
    has_boxes = bool(boxes)
    if of_detectors and not has_boxes and is_one_archive(images):
        messages.print(f"{images[0]} is not searched for boxes; --boxes {images[0]} uses those in it", soft_wrap=True)
    elif of_detectors and not has_boxes:
        has_boxes = gather(images).has_boxes(labels)
    if score and not has_boxes:
        raise ValueError("--score counts boxes, and there are none; give --boxes FILE_OR_FOLDER")
    if not has_boxes:
        return None
    by_class = dict(parse_pair(text) for text in score if "=" in text)
    overall = [text for text in score if "=" not in text]
    best = overall[-1:] == ["best"]
    score_of_all = overall[-1] if overall and not best else None
    options = {"score": score_of_all, "scores": by_class or None, "choose_scores": best or None}
    return BoxSpec.model_validate({name: option for name, option in options.items() if option is not None})


def _are_detectors(models: Sequence[ModelView]) -> bool:
    return bool(models) and all(view.kind in BOXED for view in models)


def _finish(client: Client, detail: JobDetail, wait: bool, as_json: bool) -> None:
    """Print the job's id and, with `wait`, its findings. Exits with code 1 if the job failed or was cancelled."""
    if detail.state != "running":
        messages.print(f"the same request started job {detail.id} earlier, which is {detail.state}; --again repeats it")
    if wait or not as_json:
        _print_plan(client, detail)
    if wait:
        print_page(client, detail.id)
        detail = follow_job(client, detail)
    print(detail.model_dump_json() if as_json else detail.id)
    if wait and not as_json:
        print_findings(client, detail.id)
    if detail.state in ("failed", "cancelled"):
        raise typer.Exit(1)


def _print_plan(client: Client, detail: JobDetail) -> None:
    """Print the job's size, and what its plan says on domain, checks that are off, scaling, groups and power."""
    messages.print(f"job {detail.id} of {detail.images} images, {detail.labelled} with ground truth")
    plan = client.plan_of(detail.id)
    for line in [*plan_text.domain(plan), *plan_text.checks(plan), *plan_text.scaling(plan), *plan_text.grouping(plan)]:
        messages.print(line, markup=False, soft_wrap=True)
    messages.print(plan_text.sensitivity(plan.sensitivity))


def _models(client: Client) -> list[ModelView]:
    """The models under test. Waits while the services start."""
    try:
        return client.models().models
    except NotReady as problem:
        with show_progress(messages, "starting the services") as display:
            display.update(0, 0, detail=_reason(problem))
            return client.models_when_ready(lambda latest: display.update(0, 0, detail=_reason(latest))).models


def _reason(problem: NotReady) -> str:
    """Why the system is not ready. A service that does not listen yet is no error while the system starts."""
    service = problem.members.get("unreachable")
    return f"{service} does not answer yet" if service else problem.detail


def with_backgrounds(
    client: Client, methods: Sequence[MethodChoice], folder: Path | None, console: Console, *, dry_run: bool
) -> list[MethodChoice]:
    """The methods; `compose` gets the images of the folder as backgrounds, uploaded unless it is a dry run.

    The value of a background is the name of its folder; one that lies in `folder` itself has none, and is named by its
    caption. Raises ValueError if no method is `compose`, or if there are more images than a job takes.
    """
    if folder is None:
        return list(methods)
    if METHOD not in [method.name for method in methods]:
        raise ValueError("--backgrounds are for the method compose; add --method compose")
    files = gather([folder]).images
    if len(files) > MOST_BACKGROUNDS:
        raise ValueError(
            f"{folder} has {len(files)} images, and a job takes {MOST_BACKGROUNDS} backgrounds; choose some"
        )
    if dry_run:
        digests = [hashlib.sha256(path.read_bytes()).hexdigest() for _, path in files]
    else:
        digests = upload_images(client, files, console)
    of_digest = dict(zip(digests, (path for _, path in files), strict=True))
    backgrounds: list[JsonValue] = [
        {"digest": digest, "value": _value(path, folder)} for digest, path in of_digest.items()
    ]
    return [
        method.model_copy(update={"parameters": {**method.parameters, "backgrounds": backgrounds}})
        if method.name == METHOD
        else method
        for method in methods
    ]


def _value(path: Path, folder: Path) -> str:
    if path.parent == folder:
        return ""
    return " ".join(path.parent.name.replace("_", " ").replace("-", " ").split())
