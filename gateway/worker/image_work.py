"""The work on one source image, as the database has it, and the image as methods see it.

The input images of models under test, in batches that fit one request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gateway.database.columns import StoredChange
from gateway.kinds import TaskKind
from gateway.methods import JobMethod
from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.model_services.image_shelf import ImageShelf
from gateway.models_under_test.of_job import TestedModel
from shared.chunks import chunks
from shared.schemas.base import MAX_IMAGES_PER_MESSAGE, ImagePayload, JsonObject
from shared.schemas.boxes import TrueBox
from shared.schemas.designs import ChosenValue
from shared.schemas.questions import ImageQuestion

MOST_WORDS = 3  # of an answer that an edit may not name
PIXELS_PER_REQUEST = MAX_IMAGES_PER_MESSAGE * 512**2


@dataclass(frozen=True, slots=True)
class ImageWork:
    """What the work on one source image reads from the database.

    `pixels` is width × height, `occurrence` the number of equal images before it in the job. `rendered` holds its
    counterfactuals if they exist already; then `models` are those without predictions for them.
    `classes` are those of the job. `metamorphic`: no image of the job has ground truth, a label, a mask or boxes.
    `kinds`: the kind as it judges single models.
    `object_mask` is the digest of the mask of its object, which is not a ground truth.
    `values`, in a job of rounds: what the image gets in this round; `first_ordinal` counts its counterfactuals of
    earlier rounds, and `predicted` says that its original has predictions.
    """

    id: str
    job_id: str
    owner_id: str
    position: int
    digest: str
    pixels: int
    occurrence: int
    kind: TaskKind[Any, Any]
    classes: tuple[str, ...]
    ground_truth: str | None
    mask_digest: str | None
    boxes: tuple[TrueBox, ...] | None
    questions: tuple[ImageQuestion, ...] | None
    metamorphic: bool
    task_description: TaskDescription
    methods: tuple[JobMethod, ...]
    models: tuple[TestedModel, ...]
    seed: int
    object_mask: str | None = None
    rendered: tuple[ModelInput, ...] | None = None
    values: tuple[ChosenValue, ...] | None = None
    first_ordinal: int = 0
    predicted: bool = False
    kinds: Mapping[str, TaskKind[Any, Any]] = field(default_factory=dict)

    def kind_of(self, model: str) -> TaskKind[Any, Any]:
        """The kind as it judges a model."""
        return self.kinds.get(model, self.kind)


def true_boxes(stored: Sequence[JsonObject] | None) -> tuple[TrueBox, ...] | None:
    """The boxes of a source image's row."""
    return None if stored is None else tuple(map(TrueBox.model_validate, stored))


def true_questions(stored: Sequence[JsonObject] | None) -> tuple[ImageQuestion, ...] | None:
    """The questions of a source image's row."""
    return None if stored is None else tuple(map(ImageQuestion.model_validate, stored))


def kept_answer(questions: Sequence[ImageQuestion]) -> tuple[str | None, tuple[str, ...]]:
    """What an edit must keep so that the answers stay the same, in the place of a class and of all classes.

    The answer to the first question with options, and these; or else the words that the answers to all others are.
    Questions whose answer an edit may change do not count.
    """
    questions = [question for question in questions if not question.becomes]
    for question in questions:
        if question.options and question.answers:
            return question.answers[0], tuple(question.options)
    answers = [answer for question in questions if question.type in ("text", "list") for answer in question.answers]
    return None, tuple(dict.fromkeys(answer for answer in answers if len(answer.split()) <= MOST_WORDS))


def source_of(work: ImageWork, shelf: ImageShelf) -> MethodImage:
    """The source image as methods see it."""
    # Equal images at two positions are two source images: their seeds differ. Positions do not enter the seed, so
    # a longer or reordered job reuses the recorded calls of an earlier one.
    payload = ImagePayload(png=shelf.load(work.digest))
    mask = None if work.mask_digest is None else ImagePayload(png=shelf.load(work.mask_digest))
    return MethodImage(
        f"{work.digest}/{work.occurrence}",
        payload,
        work.ground_truth or kept_answer(work.questions or ())[0],
        mask,
        boxes=work.boxes,
        questions=work.questions,
        object_mask=None if work.object_mask is None else ImagePayload(png=shelf.load(work.object_mask)),
        digest=work.digest,
        load=lambda background: ImagePayload(png=shelf.load(background)),
    )


class ModelInput(NamedTuple):
    """An input of the models under test by its digest: a counterfactual, or the original (None).

    `lost`: the places of the boxes whose objects are not there any more; None where nothing looked for them.
    `values`: what its edit has set, such as weather=night.
    """

    counterfactual_id: str | None
    digest: str
    lost: frozenset[int] | None = None
    values: frozenset[str] = frozenset()


def values_set(changes: Sequence[StoredChange]) -> frozenset[str]:
    """What the changes of an edit have set, as in a job's `values`."""
    return frozenset(f"{change['factor']}={change['to_value']}" for change in changes)


def requests(images: Sequence[ModelInput], pixels: int) -> Iterator[Sequence[ModelInput]]:
    """Batches of images of so many pixels each: they are in memory together, once as they are and twice as JSON."""
    return chunks(images, max(1, min(MAX_IMAGES_PER_MESSAGE, PIXELS_PER_REQUEST // max(1, pixels))))


def payloads(images: Sequence[ModelInput], shelf: ImageShelf) -> list[ImagePayload]:
    """The images of a batch. Raises ObjectMissing."""
    return [ImagePayload(png=shelf.load(shown.digest)) for shown in images]
