"""The image checks: their scores, the order of refusals, null arms and missing labels."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from gateway.jobs.choices import plan
from gateway.methods import METHODS
from gateway.methods.checks import (
    CHECKS,
    check_images,
    judge,
    judge_arm,
    lost_objects,
    skipped_checks,
    where_the_source_is,
)
from gateway.methods.counterfactual import Change, Edit, Factor, MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.image_scores import TEMPLATES
from shared.media.images import decode, encode
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile, shipped_profiles
from shared.schemas.base import ImagePayload
from shared.schemas.boxes import Ignored, TrueBox
from shared.schemas.diffusion import RenderReply
from shared.schemas.evaluation import (
    BoxedThing,
    EmbedReply,
    EmbedRequest,
    Move,
    ShapesOutcome,
    ShapesReply,
    ShapesRequest,
    StructureReply,
    StructureRequest,
)
from shared.schemas.jobs import JobSpec
from shared.schemas.thresholds import IMAGE_CHECKS
from tests.support.paths import REPOSITORY

SOURCE = MethodImage("image", ImagePayload(png=b"source"), "bus")
TASK = TaskDescription("name the vehicle", ("bus", "car"))
MASK = ImagePayload(png=b"mask")
THRESHOLDS = {
    "structure": {"default": 0.5, "background": 0.3},
    "caption": {"default": 0.0, "weather": 0.1},
    "label": {"default": 0.6},
}
SCORES = {
    "structure", "caption", "caption_gain", "fit", "likeness", "match", "direction", "label", "label_margin",
    "label_rank", "label_rank_limit",
}  # fmt: skip
# The space of these tests: axis 0 is "is at night", axis 1 "is a bus", axis 2 "is a car".
IMAGES = {
    b"source": (0.1, 0.9, 0.1),
    b"night bus": (0.9, 0.9, 0.1),
    b"day bus": (0.1, 0.9, 0.1),
    b"night car": (0.9, 0.1, 0.9),
    b"lost": (0.9, 0.9, 0.1),
    b"rather a car": (0.0, 0.6, 0.8),
}
BY_RANK = {"label": {"default": 0.0}}


class Scorer:
    """The evaluator's contract over a space that one can see through; it notes what it is asked."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.move: Move | None = None

    def structure(self, request: StructureRequest) -> StructureReply:
        self.requests.append(request)
        moves = [self.move if image.png != b"lost" else None for image in request.images] if request.find_moves else []
        return StructureReply(
            agreements=[0.2 if image.png == b"lost" else 0.8 for image in request.images], moves=moves
        )

    def embed(self, request: EmbedRequest) -> EmbedReply:
        self.requests.append(request)
        texts = [("night" in text, "bus" in text, "car" in text) for text in request.texts]
        return EmbedReply(
            images=[unit(IMAGES[image.png]) for image in request.images],
            texts=[unit(np.array(text, float) + 1e-6) for text in texts],
            logit_scale=10.0,
        )


def unit(vector: ArrayLike) -> list[float]:
    return [float(value) for value in np.asarray(vector, float) / np.linalg.norm(np.asarray(vector, float))]


def edit(*factors: Factor) -> Edit:
    changes = tuple(Change(factor, "by day", "at night", "day", "night") for factor in factors or ("weather",))
    return Edit(changes, "a bus by day", "a bus at night")


def reply(*images: bytes) -> RenderReply:
    return RenderReply(images=[ImagePayload(png=i) for i in images], controls={}, keep_mask=MASK, evaluations=1)


def check(*images: bytes, edits: Sequence[Edit | None] | None = None, **how: Any) -> list[Any]:
    arms = edits if edits is not None else [edit()] * len(images)
    arguments: dict[str, Any] = {"source": SOURCE, "task": TASK, "thresholds": THRESHOLDS, "services": Scorer()} | how
    return check_images(
        arguments["services"], arguments["source"], arguments["task"], reply(*images), arms, arguments["thresholds"]
    )


@pytest.mark.parametrize(
    ("image", "refused_by"),
    [(b"night bus", ""), (b"day bus", "caption"), (b"night car", "label"), (b"lost", "structure")],
)
def test_the_first_failing_check_names_the_verdict(image: bytes, refused_by: str) -> None:
    [(verdict, scores)] = check(image)
    assert (verdict.accepted, verdict.check) == (not refused_by, refused_by)
    assert set(scores) == SCORES - ({"direction"} if image == b"day bus" else set()), "every score is kept"
    assert bool(verdict.reason) == bool(refused_by)


def test_an_image_in_which_more_has_changed_fits_its_caption_less() -> None:
    (_, faithful), (_, other) = check(b"night bus", b"night car")
    assert other["fit"] < faithful["fit"]
    [(verdict, _)] = check(b"night bus", thresholds={"fit": {"default": faithful["fit"] + 0.01}})
    assert verdict.check == "fit"
    assert f"{faithful['fit']:.3f}" in verdict.reason


def test_null_arms_are_scored_and_never_refused() -> None:
    (edited, _), (null, scores) = check(b"lost", b"lost", edits=[edit(), None])
    assert not edited.accepted
    assert null.accepted
    assert scores["structure"] == 0.2
    assert "caption" not in scores


def test_a_picture_that_its_editor_moved_is_moved_back_or_refused() -> None:
    source = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
    pictures = MethodImage("image", ImagePayload(png=encode(source)), "bus")
    services, image = Scorer(), encode(np.roll(source, 3, axis=1))
    IMAGES[image] = IMAGES[pictures.image.png] = IMAGES[b"night bus"]
    services.move = Move(zoom=1, right=3, down=0, shown=0.94)
    how: dict[str, Any] = {"source": pictures, "services": services, "thresholds": {}}
    [(_, scores)] = check(image, **how)
    assert "registration" not in scores, "places mean nothing to a kind of whole images"
    (kept, scores), (_, null) = check(image, image, edits=[edit(), None], task=replace(TASK, localised=True), **how)
    assert kept.accepted
    row = MethodCounterfactual(0, "edit", 0, edit(), None, ImagePayload(png=image), kept, scores)
    stored = where_the_source_is(row, lambda: pictures.image.png)
    assert stored is not None
    assert (decode(stored.png) == source).all(), "what the image does not show is the source's"
    services.move = Move(zoom=1, right=10, down=0, shown=0.8)
    [(verdict, scores)] = check(image, task=replace(TASK, localised=True), **how)
    assert (verdict.check, "only 80% of the source" in verdict.reason) == ("registration", True)
    assert judge_arm(scores, edit(), {}).check == "registration"
    assert judge_arm(null, edit(), {}).accepted


def test_the_gain_is_measured_from_the_source_image() -> None:
    [(_, moved), (_, still)] = check(b"night bus", b"day bus")
    assert still["caption_gain"] == pytest.approx(0)
    assert moved["caption_gain"] == pytest.approx(moved["caption"] - still["caption"])


def test_one_call_of_each_kind_with_the_mask_of_what_must_stay() -> None:
    services = Scorer()
    check(b"night bus", b"day bus", b"lost", services=services)
    structure, embed, classes = services.requests
    assert structure.mask == MASK
    assert [image.png for image in embed.images] == [b"source", b"night bus", b"day bus", b"lost"]
    assert embed.texts == ["a bus by day", "a bus at night"]
    assert classes.images == []


def test_large_label_sets_are_asked_in_several_messages() -> None:
    services = Scorer()
    classes = ("bus", *(f"thing {n}, or so" for n in range(600)))
    [(_, scores)] = check(b"night bus", services=services, task=TaskDescription("name it", classes))
    assert [len(request.texts) for request in services.requests[1:]] == [2, 256, 256, 601 - 512]
    assert 0 < scores["label"] < 1


def test_class_prompts_are_asked_alike_for_every_image() -> None:
    services = Scorer()
    check(b"night bus", services=services)
    other = Edit((Change("weather", "by day", "in fog", "day", "fog"),), "a bus far away", "a bus far away in fog")
    check(b"day bus", services=services, source=MethodImage("other", SOURCE.image, "car"), edits=[other])
    _, _, first, _, _, second = services.requests
    assert first == second
    assert len(first.texts) == 2 * len(TEMPLATES)


@pytest.mark.parametrize(
    ("source", "task"),
    [
        (MethodImage("image", SOURCE.image, None), TASK),
        (SOURCE, TaskDescription("name the vehicle")),
    ],
)
def test_the_label_check_is_left_out_by_name_where_nothing_is_known(source: MethodImage, task: TaskDescription) -> None:
    [(verdict, scores)] = check(b"night car", source=source, task=task)
    assert verdict.accepted
    assert "label" not in scores
    assert skipped_checks(source, task) == ("label",)
    assert skipped_checks(SOURCE, TASK) == ()


@pytest.mark.parametrize(
    ("profile", "calibration"),
    [(name, data) for name in shipped_profiles() for data in (None, *load_profile(name).calibration)],
)
@pytest.mark.parametrize(
    "name", [name for name, method in METHODS.items() if "thresholds" in method.parameters.model_fields]
)
def test_a_picture_of_another_class_is_refused_under_every_profile(
    profile: str, calibration: str | None, name: str
) -> None:
    """`paper`, `modern` and `tiny`'s calibration accepted P(truth) = 0.001: they have no threshold for `label`.

    Of the methods without thresholds, `compose` pastes the source's own pixels, and `doses` repeats another method.
    """
    choice = {"task": "name it", "models": [], "methods": [{"name": name}], "calibration": calibration}
    spec = JobSpec.model_validate(choice)
    try:
        (method,) = plan(spec, load_profile(profile), []).methods
    except InvalidInput:  # test_every_profile_plans_every_method says where
        return
    kept: dict[str, float] = {**dict.fromkeys(IMAGE_CHECKS, 1.0), "label_margin": 0.9}
    kept |= {"label_rank": 1.0, "label_rank_limit": 1.0}
    swapped = kept | {"label": 0.001, "label_margin": -0.99, "label_rank": 8.0}
    checks = METHODS[name].checks
    assert judge(kept, edit(), method.thresholds, checks).accepted
    assert judge(swapped, edit(), method.thresholds, checks).check == "label"
    assert judge_arm(swapped, edit(), method.thresholds_for_arms, checks).check == "label", "nor counts its null arm"


@pytest.mark.parametrize(
    ("classes", "check_of_verdict"),
    [
        (["car"], "label"),
        ([*(f"car {n}" for n in range(4)), *(f"night {n}" for n in range(95))], "label"),
        ([*(f"car {n}" for n in range(4)), *(f"night {n}" for n in range(96))], ""),
        ([*(f"car {n}" for n in range(5)), *(f"night {n}" for n in range(96))], "label"),
    ],
)
def test_the_first_class_counts_and_the_first_five_of_over_a_hundred(classes: list[str], check_of_verdict: str) -> None:
    task = TaskDescription("name it", ("bus", *classes))
    [(verdict, _)] = check(b"rather a car", task=task, thresholds=BY_RANK)
    assert verdict.check == check_of_verdict


def test_a_source_that_the_scorer_misjudges_lowers_the_rank_that_counts() -> None:
    source = MethodImage("image", ImagePayload(png=b"rather a car"), "bus")
    task = TaskDescription("name it", ("bus", "car", "night"))
    (still, scores), (worse, _) = check(b"rather a car", b"night car", source=source, task=task, thresholds=BY_RANK)
    assert (scores["label_rank"], scores["label_rank_limit"]) == (2.0, 2.0)
    assert still.accepted
    assert worse.check == "label"
    [(strict, _)] = check(b"rather a car", source=source, task=task, thresholds={"label": {"default": 0.01}})
    assert strict.check == "label", "a threshold was measured together with the first rank"


def test_thresholds_are_by_factor_and_the_strictest_counts() -> None:
    scores = {"structure": 0.4, "caption": 0.05, "caption_gain": 0.0, "label": 0.9, "label_margin": 0.8}
    assert judge(scores, edit("background"), THRESHOLDS).accepted
    assert judge(scores, edit("weather"), THRESHOLDS).check == "structure"
    assert judge(scores, edit("background", "weather"), THRESHOLDS).check == "structure"
    assert judge(scores | {"structure": 0.6}, edit("background", "weather"), THRESHOLDS).check == "caption"
    assert judge(scores, edit("weather"), {}).accepted, "without thresholds there are scores only"


class Watcher(Scorer):
    """A segmenter sees the first object in every image, the second one in none that is rendered, the third nowhere."""

    def shapes(self, request: ShapesRequest) -> ShapesReply:
        self.requests.append(request)
        left = [ShapesOutcome(classes=[], things=[], boxes=[self.first, 0.2, None])] * len(request.images)
        return ShapesReply(judged=[], unjudged=[], things=[], outcomes=left)

    first = 0.9


def test_objects_that_are_not_there_any_more_are_named_and_an_edit_without_any_is_refused() -> None:
    """Crowds are not looked for."""
    labels: list[tuple[str, Ignored | None]] = [("bus", None), ("person", "crowd"), ("bus", None), ("car", None)]
    boxes = tuple(TrueBox(box=(0, 0, 9, 9), label=label, ignore=ignore) for label, ignore in labels)
    source, services = replace(SOURCE, boxes=boxes), Watcher()
    (edited, scores), (_, null) = check(
        b"night bus", b"day bus", edits=[edit(), None], source=source, services=services
    )
    assert edited.accepted
    assert scores["presence"] == null["presence"] == 0.5
    assert (scores["objects_checked"], scores["objects_lost"], scores["objects_unchecked"]) == (2, 1, 1)
    assert lost_objects(scores) == lost_objects(null) == frozenset({2})
    assert services.requests[-1] == ShapesRequest(
        source=source.image,
        images=[ImagePayload(png=b"night bus"), ImagePayload(png=b"day bus")],
        classes=["bus", "car"],
        boxes=[BoxedThing(label=labels[place][0], box=(0, 0, 9, 9)) for place in (0, 2, 3)],
    )
    services.first = 0.0
    [(edited, scores)] = check(b"night bus", source=source, services=services)
    assert edited.check == "presence"
    assert lost_objects(scores) == frozenset({0, 2})
    assert judge_arm(scores, edit(), {}).check == "presence", "its null arm, too"


def test_images_without_an_edit_each_are_refused() -> None:
    with pytest.raises(ValueError, match="one edit per image"):
        check(b"lost", edits=[])


@pytest.mark.slow
def test_a_check_is_one_entry_and_a_name_in_the_contract() -> None:
    """No other module of the product names a check whose name means nothing else."""
    means_more = {"structure", "label", "caption", "direction", "recaption", "validity"}  # columns, signals and others
    named = {
        str(path.relative_to(REPOSITORY))
        for folder in ("gateway", "shared", "contrafact", "embedded", "evaluator_service")
        for path in (REPOSITORY / folder).rglob("*.py")
        if any(
            isinstance(node, ast.Constant) and node.value in set(CHECKS) - means_more
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    }
    assert named - {"gateway/results/filters.py"} == {"gateway/methods/checks.py", "shared/schemas/thresholds.py"}, (
        "the filter `unchecked` promises two names to clients"
    )
