"""The models that a job tests, and which labels they know."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.intake.intake import refuse_unknown_labels
from gateway.kinds import announced_kind
from shared.problems import InvalidInput
from shared.profiles.profile import Profile
from shared.schemas.base import Kind
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec


def choose_models(spec: JobSpec, profile: Profile, available: Sequence[ModelUnderTestInfo]) -> list[ModelUnderTestInfo]:
    """The models under test, then the reference models."""
    tested = _tested_models(spec, profile, available)
    if repeated := {model.name for model in tested} & set(spec.reference_models):
        raise InvalidInput(f"{sorted(repeated)[0]!r} is under test; name other `reference_models`")
    return [*tested, *models_by_name(spec.reference_models, available)]


def _tested_models(
    spec: JobSpec, profile: Profile, available: Sequence[ModelUnderTestInfo]
) -> list[ModelUnderTestInfo]:
    """The models that the spec names, else the profile's default models of the kind of the ground truth."""
    if spec.models is not None:
        return models_by_name(spec.models, available)
    kind = announced_kind(spec)
    defaults = models_by_name(profile.defaults.models, available)
    of_kind = [model for model in defaults if model.kind == kind]
    if defaults and not of_kind:
        alternatives = ", ".join(repr(model.name) for model in available if model.kind == kind) or "none"
        raise InvalidInput(
            f"profile {profile.profile.name!r} tests no {kind} by default; name `models`: {alternatives}"
        )
    return of_kind


def models_by_name(names: Sequence[str], available: Sequence[ModelUnderTestInfo]) -> list[ModelUnderTestInfo]:
    """The models of these names. Raises InvalidInput for an unknown name."""
    by_name = {model.name: model for model in available}
    if unknown := [name for name in names if name not in by_name]:
        choices = ", ".join(by_name) or "none"
        raise InvalidInput(f"unknown model under test {', '.join(map(repr, unknown))}; known: {choices}")
    return [by_name[name] for name in names]


def kind_of(models: Sequence[ModelUnderTestInfo], otherwise: Kind) -> Kind:
    """The kind of the models; `otherwise` without models. Raises InvalidInput for models of several kinds."""
    kinds: dict[Kind, str] = {model.kind: model.name for model in models}
    if len(kinds) > 1:
        pairs = " and ".join(f"{name!r} is for {kind}" for kind, name in kinds.items())
        raise InvalidInput(f"{pairs}; test models of one kind in a job")
    return next(iter(kinds), otherwise)


def refuse_unknown_truths(labels: Collection[str], models: Sequence[ModelUnderTestInfo], advice: str) -> None:
    """Raise InvalidInput with `advice` if ground truth has labels that a model does not know."""
    refuse_unknown_labels(labels, class_lists(models), advice)


def class_lists(models: Sequence[ModelUnderTestInfo]) -> dict[str, Sequence[str]]:
    """The classes of each model, by its name in messages."""
    return {f"model under test {model.name!r}": model.classes for model in models}


def refuse_unknown_classes(classes: Sequence[str], models: Sequence[ModelUnderTestInfo]) -> None:
    """Raise InvalidInput if masks have classes that a segmenter does not know."""
    for model in models:
        if unknown := [name for name in classes if name not in model.classes]:
            raise InvalidInput(
                f"model under test {model.name!r} does not know the mask classes "
                f"{', '.join(map(repr, unknown[:5]))}; it knows {', '.join(map(repr, model.classes[:20]))}. Map "
                "them with `label_map`, or list their values in `masks.void`",
                members={"unknown_classes": [*unknown[:100]]},
            )
