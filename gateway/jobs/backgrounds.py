"""The backgrounds of method `compose`: the images that the user names, or a sample of the job's own images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from random import Random

from gateway.intake.sources import KeptImage, SourceFile
from gateway.jobs.choices import Plan
from gateway.kinds import KINDS
from gateway.methods import JobMethod
from gateway.methods.counterfactual import UNKNOWN, Background, scene_of
from shared.problems import InvalidInput
from shared.profiles.profile import Profile
from shared.schemas.diffusion import MOST_BACKGROUNDS
from shared.seeds import derive_seed

LEAST_IMAGES = 2  # different ones, so that each has another background


def check_compositions(plan: Plan, profile: Profile, object_masks: bool) -> None:
    """Raise InvalidInput where a method cannot find the objects, or where masks would not move with them.

    `object_masks`: the user sends the objects' masks. Method `compose` needs them, and `instruct` for backgrounds.
    A profile for photographs whose captioner knows drawings only cannot name backgrounds.
    """
    needing = {objects: method.name for method in plan.methods if (objects := method.parameters.objects())}
    if not needing:
        if object_masks:
            raise InvalidInput(
                "`object_masks` are for the method compose, and for instruct with `region` background; add one of them "
                "to `methods`, or leave the masks out"
            )
        return
    kind = KINDS[plan.kind]
    if "moved" in needing and kind.localised:
        raise InvalidInput(
            f"{needing['moved']} moves objects, and the {kind.truths} of a {kind.name} job would not move with them; "
            "test a classifier with it, or choose another method"
        )
    removing = profile.diffusion.background_remover is not None
    named = [background for method in plan.methods for background in method.parameters.own_backgrounds() or ()]
    if removing and profile.evaluator.domain is not None and not all(background.value for background in named):
        raise InvalidInput(
            f"profile {profile.profile.name!r} cannot say what a photograph shows: give each of `backgrounds` a value, "
            "on the command line by a subfolder of that name"
        )
    if object_masks:
        return
    if not profile.diffusion.finds_objects:
        raise InvalidInput(
            f"{needing.get('moved') or needing['kept']} needs the objects' masks, and profile "
            f"{profile.profile.name!r} makes none; send them and set `object_masks`, or name "
            "[diffusion.background_remover], or [diffusion.segmenter] and `keep_labels`, in the profile"
        )


def with_backgrounds(
    plan: Plan,
    sources: Sequence[SourceFile],
    seed: int,
    find: Callable[[Sequence[Background]], Mapping[str, KeptImage]],
    *,
    uploaded: bool,
) -> Plan:
    """The plan, in which method `compose` names each background by the digest of its stored pixels.

    `find` gives the owner's images by any of their digests. Raises InvalidInput for backgrounds that are not uploaded
    (`uploaded`: a dry run allows them), and for a job with too few images to take backgrounds from.
    """
    return replace(plan, methods=[_resolve(method, sources, seed, find, uploaded) for method in plan.methods])


def of_sources(method: str, sources: Sequence[SourceFile], seed: int) -> list[Background]:
    """Up to `MOST_BACKGROUNDS` of the job's images, each once, as many of each class as possible; drawn by the seed.

    Their objects are removed. The value of a labelled image is its class's scene.
    """
    by_label: dict[str, dict[str, Background]] = {}
    for source in sources:
        if source.image is not None:
            value = UNKNOWN if source.label is None else scene_of(source.label)
            mask = None if source.mask is None else source.mask.digest
            drawn = Background(digest=source.image.digest, value=value, clear=True, mask=mask)
            by_label.setdefault(value, {})[drawn.digest] = drawn
    classes = [list(by_label[value].values()) for value in sorted(by_label)]
    chance = Random(derive_seed(method, "backgrounds", seed))
    for of_class in classes:
        of_class.sort(key=lambda background: background.digest)
        chance.shuffle(of_class)
    in_turn = [background for rank in zip_longest(*classes) for background in rank if background is not None]
    return list({background.digest: background for background in in_turn}.values())[:MOST_BACKGROUNDS]


def _resolve(
    method: JobMethod,
    sources: Sequence[SourceFile],
    seed: int,
    find: Callable[[Sequence[Background]], Mapping[str, KeptImage]],
    uploaded: bool,
) -> JobMethod:
    named = method.parameters.own_backgrounds()
    if named is None:
        return method
    if named:
        backgrounds = _load_backgrounds(method, named, find(named), uploaded)
    else:
        backgrounds = of_sources(method.name, sources, seed)
        if len(backgrounds) < LEAST_IMAGES:
            raise InvalidInput(
                f"{method.name} takes backgrounds from the other images of the job, and it has none; bring more "
                "images, name `backgrounds`, or set `backgrounds_per_image` to 0"
            )
    return replace(method, parameters=method.parameters.model_copy(update={"backgrounds": tuple(backgrounds)}))


def _load_backgrounds(
    method: JobMethod, named: Sequence[Background], images: Mapping[str, KeptImage], uploaded: bool
) -> list[Background]:
    """The named backgrounds by the digests of their stored pixels, without those of a dry run that are missing."""
    missing = [digest for digest in method.backgrounds if digest not in images]
    if missing and uploaded:
        raise InvalidInput(
            f"{len(missing)} backgrounds of {method.name} are not uploaded, first {missing[0]}; upload them with "
            "PUT /images/{digest}, and masks with PUT /images/{digest}?mask=true",
            members={"missing": [*missing]},
        )
    for background in named:
        image, mask = images.get(background.digest), images.get(background.mask or "")
        if image is not None and image.mode != "RGB":
            raise InvalidInput(f"background {background.digest} is a mask; name an image, and its mask as `mask`")
        if image is not None and mask is not None and (image.width, image.height) != (mask.width, mask.height):
            raise InvalidInput(
                f"the mask of background {background.digest} has {mask.width} × {mask.height} pixels, the image "
                f"{image.width} × {image.height}; send a mask of the image's size"
            )
    stored = {
        images[background.digest].digest: background.model_copy(
            update={
                "digest": images[background.digest].digest,
                "mask": None if background.mask is None else images[background.mask].digest,
            }
        )
        for background in named
        if not {background.digest, background.mask} - {None} - set(images)
    }
    return list(stored.values())
