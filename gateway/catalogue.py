"""What a job may choose from: methods with their parameters, models under test, profiles; and the choice it gets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue, ValidationError

from gateway.methods import METHODS
from shared.problems import InvalidInput, validation_sentence
from shared.profiles import Profile, load_profile, shipped_profiles
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec, MethodInfo, MethodsReply, ProfilesReply, ProfileView
from shared.weights import Weights


@dataclass(frozen=True, slots=True)
class Plan:
    """A spec with every default filled in: `methods` are names with complete, checked parameters."""

    methods: list[dict[str, Any]]
    models: list[ModelUnderTestInfo]
    classes: list[str]


def plan(spec: JobSpec, profile: Profile, known_models: Sequence[ModelUnderTestInfo]) -> Plan:
    """Fill in the profile's defaults and check names and parameters. Raises InvalidInput that names what there is.

    `known_models` may be empty when the spec tests none. The classes are the spec's, else all that the models know.
    """
    chosen = {method.name: method.parameters for method in spec.methods or []}
    methods = chosen or {name: {} for name in profile.defaults.methods}
    for name in methods:
        _check_needs(name, profile)
    models = chosen_models(profile.defaults.models if spec.models is None else spec.models, known_models)
    if spec.calibration is not None and spec.calibration not in profile.calibration:
        there_are = ", ".join(profile.calibration) or "none"
        raise InvalidInput(
            f"the checks are not calibrated on {spec.calibration!r}; data sets they are calibrated on: {there_are}"
        )
    if spec.calibration is not None and any("thresholds" in given for given in chosen.values()):
        raise InvalidInput("`calibration` holds for the profile's own thresholds; leave out one of the two")
    classes = spec.classes or list(dict.fromkeys(name for model in models for name in model.classes))
    return Plan(
        methods=[
            {"name": name, "parameters": _parameters(name, {**method_defaults(name, profile), **given})}
            for name, given in methods.items()
        ],
        models=models,
        classes=classes,
    )


def methods_listing(profile: Profile) -> MethodsReply:
    """All methods, with the JSON schemas of their parameters; the profile's defaults are written into them."""
    listing = []
    for name, method in METHODS.items():
        schema = method.parameters.model_json_schema()
        for parameter, value in method_defaults(name, profile).items():
            schema["properties"][parameter]["default"] = value
        listing.append(
            MethodInfo(
                name=name,
                summary=method.summary,
                paper=method.paper,
                default=name in profile.defaults.methods,
                parameters=schema,
            )
        )
    return MethodsReply(methods=listing)


def method_defaults(name: str, profile: Profile) -> dict[str, JsonValue]:
    """The profile's parameters of a method, with the thresholds of its checks where the method takes them."""
    defaults: dict[str, JsonValue] = {}
    if name in METHODS and "thresholds" in METHODS[name].parameters.model_fields:
        defaults["thresholds"] = {check: dict(limits) for check, limits in profile.thresholds.items()}
    if name in METHODS and "text_thresholds" in METHODS[name].parameters.model_fields:
        defaults["text_thresholds"] = {check: dict(limits) for check, limits in profile.text_thresholds.items()}
    return defaults | profile.methods.get(name, {})


def profiles_listing(active: str) -> ProfilesReply:
    """The shipped profiles, and the active one where it is the operator's own file."""
    names = list(dict.fromkeys([*shipped_profiles(), active]))
    return ProfilesReply(profiles=[_profile_view(load_profile(name), name == active) for name in names])


def _profile_view(profile: Profile, active: bool) -> ProfileView:
    roles: dict[str, Weights | None] = {
        "caption": profile.caption.weights,
        "language": profile.language.weights,
        "language adapter": profile.language.adapter,
        "diffusion": profile.diffusion.base,
        "segmenter": profile.diffusion.segmenter,
        "scorer": profile.evaluator.scorer,
        "text embedder": profile.evaluator.text_embedder,
        "masked words": profile.language.masked_words,
        **{f"control {kind}": weights for kind, weights in profile.diffusion.controlnets.items()},
    }
    return ProfileView(
        name=profile.profile.name,
        description=profile.profile.description,
        active=active,
        methods=profile.defaults.methods,
        models=profile.evaluator.aliases,
        weights={role: weights.id for role, weights in roles.items() if weights is not None},
        calibrations=list(profile.calibration),
    )


def _check_needs(name: str, profile: Profile) -> None:
    """Raise InvalidInput where the profile has no weights of a kind that the method needs."""
    there = {"text_embedder": profile.evaluator.text_embedder, "masked_words": profile.language.masked_words}
    tables = {"text_embedder": "evaluator", "masked_words": "language"}
    for need in METHODS[name].needs if name in METHODS else ():
        if there[need] is None:
            raise InvalidInput(
                f"method {name!r} needs [{tables[need]}.{need}], which profile {profile.profile.name!r} does not have; "
                "name such weights in the profile, or choose another method"
            )


def _parameters(name: str, given: dict[str, Any]) -> dict[str, Any]:
    if name not in METHODS:
        raise InvalidInput(f"there is no method {name!r}; there are {', '.join(METHODS)}")
    try:
        return METHODS[name].parameters.model_validate_json(json.dumps(given)).model_dump(mode="json")
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"the parameters of {name}: {sentence}") from error


def chosen_models(names: Sequence[str], known: Sequence[ModelUnderTestInfo]) -> list[ModelUnderTestInfo]:
    """The models of these names. Raises InvalidInput for one that is not known, or tells no classes of whole images."""
    by_name = {model.name: model for model in known}
    if unknown := [name for name in names if name not in by_name]:
        there_are = ", ".join(by_name) or "none"
        raise InvalidInput(f"there is no model under test {', '.join(map(repr, unknown))}; there are: {there_are}")
    chosen = [by_name[name] for name in names]
    if other := next((model for model in chosen if model.task != "classification"), None):
        raise InvalidInput(f"the model under test {other.name!r} does {other.task}; jobs test classification")
    return chosen
