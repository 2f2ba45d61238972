"""`contrafact.test`: test a model on images in this process. The system is imported when the function is called."""

# ruff: noqa: PT028  # `test` is no pytest function
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from contrafact.outcome import Outcome
from shared.package import uninterrupted
from shared.schemas.designs import ChosenValue, DesignKind
from shared.schemas.jobs import JobDetail, MethodChoice, ProtectedCharacteristics
from shared.schemas.models import Output, Preprocessing

Inputs = Literal["arrays", "pil"]
TestedKind = Literal["classification", "detection", "vqa"]


class JobFailed(RuntimeError):
    """The job of a test failed or was cancelled; the message is its reason."""


@dataclass(frozen=True)
class InProcessOptions:
    """The arguments of `test` except model and data set."""

    task: str
    methods: Sequence[str | MethodChoice] | None
    factors: Sequence[str] | None
    values: Sequence[ChosenValue] | None
    classes: Sequence[str] | None
    labels: Path | None
    label_column: str | None
    label_map: Mapping[str, str]
    output: Output | None
    preprocess: Callable[..., Any] | None
    preprocessing: Preprocessing | None
    input_size: tuple[int, int] | None
    inputs: Inputs
    name: str
    seed: int
    outside_domain: bool
    protected_characteristics: ProtectedCharacteristics
    profile: str | None
    directory: Path
    on_progress: Callable[[JobDetail], None] | None
    kind: TestedKind = "classification"
    score: float | Literal["best"] | Mapping[str, float] | None = None
    design: DesignKind | None = None


def test(
    model: object,
    dataset: object,
    *,
    task: str,
    kind: TestedKind = "classification",
    methods: Sequence[str | MethodChoice] | None = None,
    factors: Sequence[str] | None = None,
    values: Sequence[str] | None = None,
    design: DesignKind | None = None,
    classes: Sequence[str] | None = None,
    labels: Path | str | None = None,
    label_column: str | None = None,
    label_map: Mapping[str, str] | None = None,
    output: Output | None = None,
    preprocess: Callable[..., Any] | None = None,
    preprocessing: Preprocessing | None = None,
    input_size: tuple[int, int] | None = None,
    inputs: Inputs = "arrays",
    score: float | Literal["best"] | Mapping[str, float] | None = None,
    name: str = "model",
    seed: int = 0,
    outside_domain: bool = False,
    protected_characteristics: ProtectedCharacteristics = "refuse",
    profile: str | None = None,
    directory: Path | str = "contrafact-test",
    on_progress: Callable[[JobDetail], None] | None = None,
) -> Outcome:
    """Find changes of the world that break a classifier, a detector, or a model that answers questions.

    Runs the whole system in this process until the job ends. Calls in several threads run one after another.

    Args:
        model: A function of a list of images that returns probabilities (images × classes) or predicted labels; an
            `nn.Module`; a transformers model or image-classification pipeline; a MAITE model; the path of an ONNX
            file or of a folder in Hub layout; a Hub id (`org/name` or `org/name@revision`); or a model under test of
            the profile, by name.
        dataset: A folder, a list of files and folders, or one zip or tar (manifest, `metadata.csv`, `labels.csv`, class
            files or class folders are the ground truth, as for `contrafact submit`); a list of (image, label); a torch
            data set of such pairs; a Hugging Face data set with one column of images (see `label_column`); or a MAITE
            data set. An image is a path, the bytes of a file, a PIL image, an array (height × width × channels) or a
            tensor (channels first), of uint8 or floats from 0 to 1. A label is the name of a class, its index, or None.
        task: What the model does, in a sentence.
        kind: What kind of model it is. docs/how-to/detection.md says how detectors and their data sets are read;
            docs/how-to/vqa.md those of models that answer questions: functions of an image and a question.
        methods: Names, or choices with parameters; default: the profile's.
        factors: Only these factors change, such as `["weather"]`, in methods that have the parameter.
        values: Every image gets these changes, such as `["weather=night"]`; default: some are chosen for the data set
            (see "Balanced jobs" in the reference of methods).
        design: "free" lets the language model choose changes for each image; default: that of the profile.
        classes: Names of the model's outputs, in their order; needed if neither model nor data set names them. A data
            set that names the same classes in another order keeps that order for its labels.
        labels: A manifest (CSV or JSON Lines) for files, a folder or an archive that has none inside.
        label_column: The column of a Hugging Face data set with the labels: a ClassLabel, names of classes, or their
            indices with `classes`. Default: the only ClassLabel column, or `label`; without one, a warning says so.
        label_map: Maps labels of the images to classes of the model.
        output: What the model returns; default: probabilities of functions. Modules and ONNX files show it: they return
            probabilities if their outputs for several images sum to 1, else logits.
        preprocess: For modules: turns a PIL image into the tensor of one image, or is a transformers image processor.
        preprocessing: For ONNX files: how an image becomes their input.
        input_size: Height and width of a JATIC_ONNX model whose metadata leaves them open.
        inputs: What a function gets: arrays (height × width × 3, uint8), or PIL images.
        score: Least score of a detector's box that counts, of all classes or by class; default: 0.5. "best": the one
            with the highest F1 on the originals, for each class.
        name: The model's name in results.
        seed: Seed of the job.
        outside_domain: Test images that the profile's models do not know, such as photographs with `tiny`. Otherwise a
            data set of mostly such images is refused.
        protected_characteristics: `allow` makes edits of people's gender, age, ethnicity and so on, for whose lawful
            basis and use you answer; they are counted by group. Otherwise such edits are refused.
        profile: A shipped profile, or the path of a TOML file. Default: `tiny`; for images that its models do not know,
            such as photographs, `photographs` and method `compose`, which moves objects to other backgrounds, unless
            you ask for something else. It fetches a background remover from the Hub once (5 MB).
        directory: Where everything is kept. A later call on it takes captions and renderings from there.
        on_progress: Called with the job, about once a second; default: progress is shown on stderr.

    Before the job starts, stderr says what is used of the data set, what is left out, where labels come from, and
    which drops the images can show. An image that cannot be read is left out.

    Raises ValueError for a model or data set that cannot be used, what the model raises on the first image,
    `contrafact.Problem` for a request that the system refuses, JobFailed, and ImportError where the system is missing.
    """
    try:
        run_test = uninterrupted(_import_system)
    except ModuleNotFoundError as error:
        message = f"{error}: `test` runs the whole system: install `contrafact[embedded]`"
        raise ImportError(message, name=error.name) from error
    options = InProcessOptions(
        task=task,
        methods=methods,
        factors=factors,
        values=None if values is None else [ChosenValue.model_validate(value) for value in values],
        design=design,
        classes=classes,
        labels=None if labels is None else Path(labels),
        label_column=label_column,
        label_map=label_map or {},
        output=output,
        preprocess=preprocess,
        preprocessing=preprocessing,
        input_size=input_size,
        inputs=inputs,
        name=name,
        seed=seed,
        outside_domain=outside_domain,
        protected_characteristics=protected_characteristics,
        profile=profile,
        directory=Path(directory),
        on_progress=on_progress,
        kind=kind,
        score=score,
    )
    return run_test(model, dataset, options)


def _import_system() -> Callable[[object, object, InProcessOptions], Outcome]:
    from embedded.library.run import run_test  # the client works without the system, whose import takes seconds

    return run_test


test.__test__ = False  # type: ignore[attr-defined]  # pytest would run it wherever a test module imports it
