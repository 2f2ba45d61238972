"""Models of the caller that answer questions, and data sets with questions about their images.

The truth of an image is a question with its answer, `{"question": "How many cars?", "answer": 3}` as in a manifest, the
pair of both, or a list of these. A Hugging Face data set has the columns `question` and `answer` or `answers`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, cast

from PIL import Image
from pydantic import TypeAdapter, ValidationError

from contrafact.testing import InProcessOptions
from contrafact.testset_files import gather
from embedded.library.datasets import (
    Columns,
    ImageSet,
    Indexed,
    LabelledImage,
    Truths,
    archive_set,
    described,
    find_image_column,
    position_name,
)
from embedded.library.models import Alias
from evaluator_service.models_under_test.in_process import AnsweringFunction, InProcessModel
from evaluator_service.models_under_test.kinds.vqa import HOW, VQA
from shared.media.archives import is_archive_file
from shared.media.images import Pixels
from shared.media.manifests import QUESTION, QUESTION_COLUMNS
from shared.media.testsets import TestSet
from shared.problems import InvalidInput, validation_sentence
from shared.schemas.questions import DEFAULT_QUESTION, ImageQuestion, ImageQuestions

QUESTIONS_TYPE: TypeAdapter[list[ImageQuestion]] = TypeAdapter(ImageQuestions)
_FORMS = 'give {"question": …, "answer": …}, a pair (question, answer), or a list of these'


def prepare_answerer(model: object, images: ImageSet, options: InProcessOptions) -> AnsweringFunction | Alias:
    """How the caller's model is tested: a function of an image and a question, or a model of the profile by name."""
    if isinstance(model, str):
        return Alias(model)
    if not callable(model):
        raise ValueError(
            f"a {type(model).__name__} answers no questions; give a function of an image and a question that returns "
            "text, or the name of a model of the profile"
        )
    function = cast(Callable[[Any, str], str], model)

    def answer(image: Pixels, question: str) -> str:
        return function(Image.fromarray(image) if options.inputs == "pil" else image.copy(), question)

    return AnsweringFunction(VQA.name, answer, uuid.uuid4().hex)


def try_answerer(model: InProcessModel, first: Pixels) -> None:
    """Ask about the first image. Raises InvalidInput if the function raises, or returns no text."""
    assert isinstance(model, AnsweringFunction)
    model.answer(first, f"{DEFAULT_QUESTION.question}\n{HOW[DEFAULT_QUESTION.type]}")


def read_questions(value: object, image: str) -> tuple[ImageQuestion, ...]:
    """The questions in what a data set says of one image. Raises InvalidInput for any other value."""
    several = isinstance(value, Sequence) and not isinstance(value, str) and not _is_pair(value)
    try:
        rows = [_fields(entry) for entry in (cast(Sequence[object], value) if several else [value])]
        return tuple(QUESTIONS_TYPE.validate_python(rows))
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"{image!r}: {sentence}") from error
    except TypeError as error:
        raise InvalidInput(f"{image!r}: the questions are {described(value)}; {_FORMS}") from error


def _is_pair(value: Sequence[object]) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)


def _fields(value: object) -> object:
    if isinstance(value, tuple) and _is_pair(value):
        return {QUESTION: value[0], "answers": value[1]}
    if isinstance(value, Mapping | ImageQuestion):
        return value
    raise TypeError(value)


def _files(paths: Sequence[Path], known_classes: Collection[str], labels: Path | None) -> ImageSet:
    if len(paths) == 1 and is_archive_file(paths[0]):
        return archive_set(paths[0], known_classes, labels, questions=True)
    local = gather(paths)
    rows = local.label(labels, known_classes, questions=True)
    images = [(name, path, row) for (name, path), row in zip(local.images, rows, strict=True) if row.questions]
    if not images:
        raise InvalidInput("no image has questions; give a manifest, a line for each question, beside the images")

    def read(position: int) -> LabelledImage:
        name, path, row = images[position]
        return LabelledImage(path, None, name, row.group, questions=tuple(row.questions or ()))

    without = {name for name, _ in local.images} - {name for name, _, _ in images}
    local.test_set.left_out |= dict.fromkeys(sorted(without), "there is no question about it")
    return ImageSet(len(images), read, test_set=local.test_set)


def _with_questions(image: LabelledImage, target: object, classes: Sequence[str] | None) -> LabelledImage:
    return replace(image, questions=read_questions(target, image.name))


def _no_maite(*_: object) -> NoReturn:
    raise ValueError("MAITE's data sets have no questions; give pairs of images and their questions")


def _hugging_face(dataset: Indexed, features: Columns, classes: Sequence[str] | None, chosen: str | None) -> ImageSet:
    if chosen is not None:
        raise ValueError("`label_column` is a column of labels; questions are in the column `question`")
    if QUESTION not in features:
        raise ValueError(f"the data set has no column {QUESTION}; its columns are {', '.join(features)}")
    column = find_image_column(features)
    known = [name for name in features if name in QUESTION_COLUMNS]

    def read(position: int) -> LabelledImage:
        row = cast(Mapping[str, object], dataset[position])
        name = position_name(position)
        fields = {QUESTION_COLUMNS[name]: row[name] for name in known if row[name] is not None}
        return LabelledImage(row[column], None, name, questions=read_questions(fields, name))

    return ImageSet(len(dataset), read, test_set=TestSet(labels_from=f"questions are read from {', '.join(known)}"))


ASKED_TRUTHS = Truths(_files, _with_questions, _no_maite, _hugging_face, "questions are those of the data set")
