"""What a job may choose from: methods with their parameters, models under test, profiles; and the choice it gets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pydantic import JsonValue, ValidationError

from gateway.intake.intake import refuse_unknown_labels
from gateway.intake.masks import mask_reader
from gateway.methods import METHODS
from gateway.methods.checks import CHECKS
from gateway.methods.controlled import ControlledParameters
from shared.problems import InvalidInput, validation_sentence
from shared.profiles import Profile, load_profile, shipped_profiles
from shared.schemas.base import Kind
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec, MethodChoice, MethodInfo, MethodsReply
from shared.schemas.masks import MAX_MASK_CLASSES
from shared.schemas.profiles import ProfilesReply, ProfileView
from shared.weights import Weights


@dataclass(frozen=True, slots=True)
class Plan:
    """A spec with every default filled in: `methods` have complete, checked parameters.

    `kind` is what the models under test do, all of them.
    """

    methods: list[MethodChoice]
    models: list[ModelUnderTestInfo]
    classes: list[str]
    kind: Kind = "classification"


def plan(spec: JobSpec, profile: Profile, known_models: Sequence[ModelUnderTestInfo]) -> Plan:
    """Fill in the profile's defaults and check names and parameters. Raises InvalidInput that names what there is.

    `known_models` may be empty when the spec tests none. The classes are the spec's, else all that the models know.
    """
    chosen = {method.name: method.parameters for method in spec.methods or []}
    methods = chosen or {name: {} for name in profile.defaults.methods}
    for name in methods:
        _check_needs(name, profile)
    models = _models(spec, profile, known_models)
    kind = kind_of(models, "classification" if spec.masks is None else "segmentation")
    if kind == "classification" and spec.masks is not None:
        raise InvalidInput(
            f"the ground truth is masks, but the model under test {models[0].name!r} classifies; choose "
            "segmenters, or leave out `masks`"
        )
    _check_calibration(spec, profile, kind)
    classes = spec.classes or list(dict.fromkeys(name for model in models for name in model.classes))
    if spec.masks is not None:
        classes = list(mask_reader(spec.masks, spec.label_map).classes)
        refuse_unknown_classes(classes, models)
    if kind == "segmentation" and len(classes) > MAX_MASK_CLASSES:
        raise InvalidInput(
            f"the segmenters know {len(classes)} classes, more than {MAX_MASK_CLASSES}; test them in jobs of their own"
        )
    return Plan(
        methods=[
            MethodChoice(
                name=name,
                parameters=_parameters(name, {**_defaults(name, profile, kind, given), **given}, profile),
            )
            for name, given in methods.items()
        ],
        models=models,
        classes=classes,
        kind=kind,
    )


def _check_calibration(spec: JobSpec, profile: Profile, kind: Kind) -> None:
    """Raise InvalidInput where the errors of the checks that `calibration` names do not hold for this job."""
    if spec.calibration is None:
        return
    if spec.calibration not in profile.calibration:
        there_are = ", ".join(profile.calibration) or "none"
        raise InvalidInput(
            f"the checks are not calibrated on {spec.calibration!r}; data sets they are calibrated on: {there_are}"
        )
    measured = profile.calibration[spec.calibration]
    if measured.kind != kind:
        raise InvalidInput(
            f"the errors of the checks on {spec.calibration!r} were measured in jobs of {measured.kind}, "
            f"and this one is of {kind}, which has other checks; leave `calibration` out"
        )
    own = {name for method in spec.methods or [] for name in ("thresholds", "recaption") if name in method.parameters}
    if own:
        raise InvalidInput(
            f"`calibration` is for the profile's own checks; leave out either it or {' and '.join(sorted(own))}"
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


def method_defaults(
    name: str, profile: Profile, given: Mapping[str, object] = MappingProxyType({})
) -> dict[str, JsonValue]:
    """The profile's parameters of a method, with the thresholds of its checks where the method takes them.

    Where few-step weights render by default, steps and guidance are theirs, unless what is `given` names others.
    """
    defaults: dict[str, JsonValue] = {}
    if name in METHODS and "thresholds" in METHODS[name].parameters.model_fields:
        defaults["thresholds"] = {check: dict(limits) for check, limits in profile.thresholds.items()}
    if name in METHODS and "text_thresholds" in METHODS[name].parameters.model_fields:
        defaults["text_thresholds"] = {check: dict(limits) for check, limits in profile.text_thresholds.items()}
    return defaults | profile.methods.get(name, {}) | _few_steps(name, profile, given)


def unchecked_methods(methods: Sequence[MethodChoice], kind: Kind) -> list[str]:
    """The methods that draw images anew and of whose images no check can refuse one, noise included.

    `shapes` and `things` look at images of segmentation jobs only.
    """
    deciding = set(CHECKS) - (set() if kind == "segmentation" else {"shapes", "things"})
    unchecked = []
    for choice in methods:
        if choice.name in METHODS and issubclass(METHODS[choice.name].parameters, ControlledParameters):
            parameters = ControlledParameters.model_validate(
                {name: choice.parameters[name] for name in ("thresholds", "recaption") if name in choice.parameters}
            )
            if not parameters.recaption and not deciding & set(parameters.thresholds):
                unchecked.append(choice.name)
    return unchecked


def _few_steps(name: str, profile: Profile, given: Mapping[str, object]) -> dict[str, JsonValue]:
    """Steps and guidance of the profile's few-step weights, for a method that they render by default."""
    few_step = profile.diffusion.few_step
    controlled = name in METHODS and issubclass(METHODS[name].parameters, ControlledParameters)
    if few_step is None or not few_step.default or not controlled:
        return {}
    own: dict[str, JsonValue] = {"steps": few_step.steps, "guidance": few_step.guidance}
    return {} if any(given.get(parameter, value) != value for parameter, value in own.items()) else own


def _defaults(name: str, profile: Profile, kind: Kind, given: Mapping[str, object]) -> dict[str, JsonValue]:
    """Those of a job of a kind: where the ground truth is masks, the profile's things keep their shapes."""
    holds = name in METHODS and "protection" in METHODS[name].parameters.model_fields
    things = profile.diffusion.keep_labels if profile.diffusion.segmenter and kind == "segmentation" else []
    protected: dict[str, JsonValue] = {"protect": [*things]} if holds and things else {}
    return protected | method_defaults(name, profile, given)


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
        "depth": profile.diffusion.depth,
        "few steps": profile.diffusion.few_step.weights if profile.diffusion.few_step else None,
        "scorer": profile.evaluator.scorer,
        "text embedder": profile.evaluator.text_embedder,
        "segmenter of the checks": profile.evaluator.segmenter,
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


def _parameters(name: str, given: dict[str, JsonValue], profile: Profile) -> dict[str, JsonValue]:
    if name not in METHODS:
        raise InvalidInput(f"unknown method {name!r}; choose from {', '.join(METHODS)}")
    try:
        parameters = METHODS[name].parameters.model_validate(given)
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"the parameters of {name}: {sentence}") from error
    if isinstance(parameters, ControlledParameters):
        _check_controls(name, parameters, profile)
    return parameters.model_dump(mode="json")


def _check_controls(name: str, parameters: ControlledParameters, profile: Profile) -> None:
    """Raise InvalidInput where the profile lacks a kind of control, or a segmenter for what is protected."""
    there = profile.diffusion.controlnets
    if missing := [control.kind for control in parameters.strengths if control.kind not in there]:
        raise InvalidInput(
            f"method {name!r} asks for control by {', '.join(missing)}; profile {profile.profile.name!r} has "
            f"ControlNets for {', '.join(there)}"
        )
    if parameters.protect and profile.diffusion.segmenter is None:
        raise InvalidInput(
            f"`protect` needs a segmenter, and profile {profile.profile.name!r} has none; name [diffusion.segmenter]"
        )


def chosen_models(names: Sequence[str], known: Sequence[ModelUnderTestInfo]) -> list[ModelUnderTestInfo]:
    """The models of these names. Raises InvalidInput for one that is not known."""
    by_name = {model.name: model for model in known}
    if unknown := [name for name in names if name not in by_name]:
        known_names = ", ".join(by_name) or "none"
        raise InvalidInput(f"unknown model under test {', '.join(map(repr, unknown))}; known: {known_names}")
    return [by_name[name] for name in names]


def kind_of(models: Sequence[ModelUnderTestInfo], otherwise: Kind) -> Kind:
    """What models do, all alike; `otherwise` without models. Raises InvalidInput for models of both kinds."""
    kinds: dict[str, str] = {model.kind: model.name for model in models}
    if len(kinds) > 1:
        pairs = " and ".join(f"{name!r} is for {kind}" for kind, name in kinds.items())
        raise InvalidInput(f"{pairs}; test models of one kind in a job")
    if "segmentation" in kinds:
        return "segmentation"
    return "classification" if kinds else otherwise


def refuse_unknown_truths(labels: Collection[str], models: Sequence[ModelUnderTestInfo], advice: str) -> None:
    """Raise InvalidInput where ground truth has labels that a model does not know. `advice`: what to do then."""
    refuse_unknown_labels(labels, class_lists(models), advice)


def class_lists(models: Sequence[ModelUnderTestInfo]) -> dict[str, Sequence[str]]:
    """The classes of each model, by its name as messages have it."""
    return {f"model under test {model.name!r}": model.classes for model in models}


def refuse_unknown_classes(classes: Sequence[str], models: Sequence[ModelUnderTestInfo]) -> None:
    """Raise InvalidInput where masks have classes that a segmenter does not know."""
    for model in models:
        if unknown := [name for name in classes if name not in model.classes]:
            raise InvalidInput(
                f"model under test {model.name!r} does not know the mask classes "
                f"{', '.join(map(repr, unknown[:5]))}; it knows {', '.join(map(repr, model.classes[:20]))}. Map "
                "them with `label_map`, or list their values in `masks.void`",
                members={"unknown_classes": [*unknown[:100]]},
            )


def _models(spec: JobSpec, profile: Profile, known: Sequence[ModelUnderTestInfo]) -> list[ModelUnderTestInfo]:
    """Those that the spec names, else those of the profile's defaults that do what the ground truth asks for."""
    if spec.models is not None:
        return chosen_models(spec.models, known)
    wanted: Kind = "classification" if spec.masks is None else "segmentation"
    defaults = chosen_models(profile.defaults.models, known)
    able = [model for model in defaults if model.kind == wanted]
    if defaults and not able:
        others = ", ".join(repr(model.name) for model in known if model.kind == wanted) or "none"
        raise InvalidInput(f"profile {profile.profile.name!r} tests no {wanted} by default; name `models`: {others}")
    return able
