"""The backgrounds of compositions: a sample of the job's images, or the user's by the digests of their pixels."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gateway.intake.sources import KeptImage, KeptMask, SourceFile
from gateway.jobs.backgrounds import check_compositions, of_sources, with_backgrounds
from gateway.jobs.choices import Plan
from gateway.methods import JobMethod
from gateway.methods.compose import ComposeParameters
from gateway.methods.counterfactual import UNKNOWN, Background
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile
from shared.schemas.diffusion import MOST_BACKGROUNDS


def kept_image(number: int) -> KeptImage:
    return KeptImage(f"{number:064x}", f"{number + 1_000_000:064x}", 32, 32, 100)


def source(number: int, label: str | None = None, mask: KeptMask | None = None) -> SourceFile:
    return SourceFile(f"{number}.png", label, kept_image(number), mask=mask)


def plan_of(*backgrounds: Background) -> Plan:
    return Plan([JobMethod("compose", ComposeParameters(backgrounds=backgrounds))], [], [])


def test_each_class_gives_as_many_as_it_can_and_the_seed_draws_them() -> None:
    sources = [source(number, "bus" if number < 500 else "car") for number in range(510)]
    backgrounds = of_sources("compose", sources, 1)
    assert Counter(background.value for background in backgrounds) == {
        "bus scene": MOST_BACKGROUNDS - 10,
        "car scene": 10,
    }
    assert backgrounds == of_sources("compose", list(reversed(sources)), 1), "their order does not matter"
    assert backgrounds != of_sources("compose", sources, 2)
    assert all(background.clear for background in backgrounds)


def test_equal_images_are_one_background_and_unlabelled_ones_have_one_value() -> None:
    backgrounds = of_sources(
        "compose", [source(1), source(1), source(2), SourceFile("broken.png", None, None, "broken")], 1
    )
    assert {background.value for background in backgrounds} == {UNKNOWN}
    assert len(backgrounds) == 2


def test_a_background_brings_the_mask_of_its_object() -> None:
    mask = KeptMask(f"{7:064x}", 32, 32, 100, (), (32, 32))
    (background,) = of_sources("compose", [source(1, "bus", mask)], 1)
    assert background.mask == mask.digest


def test_backgrounds_are_named_by_the_digest_of_their_pixels() -> None:
    sent = Background(digest=kept_image(5).upload, value="snow")
    images = {kept_image(5).upload: kept_image(5), kept_image(5).digest: kept_image(5)}
    (method,) = with_backgrounds(plan_of(sent), [], 0, lambda _: images, uploaded=True).methods
    assert method.backgrounds == [kept_image(5).digest]


def test_missing_backgrounds_are_refused_unless_it_is_a_dry_run() -> None:
    sent = Background(digest=kept_image(5).upload, value="snow")
    with pytest.raises(InvalidInput, match="PUT"):
        with_backgrounds(plan_of(sent), [], 0, lambda _: {}, uploaded=True)
    (method,) = with_backgrounds(plan_of(sent), [], 0, lambda _: {}, uploaded=False).methods
    assert method.backgrounds == []


def test_photographs_of_backgrounds_are_named_by_the_user() -> None:
    """The captioner of drawings would name them."""
    profile, named = load_profile("photographs"), Background(digest=kept_image(5).upload, value="snow")
    check_compositions(plan_of(named), profile, False)
    with pytest.raises(InvalidInput, match="value"):
        check_compositions(plan_of(named.model_copy(update={"value": "", "digest": "0" * 64})), profile, False)


def test_a_job_of_one_image_has_no_backgrounds_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="backgrounds_per_image"):
        with_backgrounds(plan_of(), [source(1)], 0, lambda _: {}, uploaded=True)


def test_a_segmentation_job_is_refused_because_its_masks_would_not_move() -> None:
    plan = replace(plan_of(), kind="segmentation")
    with pytest.raises(InvalidInput, match="masks of a segmentation job would not move"):
        check_compositions(plan, load_profile("tiny-roads"), False)
    check_compositions(replace(plan, kind="classification"), load_profile("tiny-roads"), False)
