"""What a job can choose: methods, their parameters, models under test, profiles. `plan` checks a spec against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from gateway.intake.intake import QUESTIONS_IN_MANIFEST
from gateway.intake.masks import mask_reader
from gateway.jobs.model_choice import choose_models, kind_of, refuse_unknown_classes
from gateway.kinds import KINDS, announced_kind
from gateway.methods import METHODS, JobMethod
from gateway.methods.caption import IMAGE_DOMAIN
from gateway.methods.checks import LABEL, LABEL_BY_RANK, UNCALIBRATED
from gateway.methods.controlled import ControlledParameters
from gateway.methods.counterfactual import Thresholds
from gateway.methods.proposed_values import ProposedValues
from gateway.methods.validity import CheckParameters
from shared.problems import InvalidInput, validation_sentence
from shared.profiles.judge_audit import counting_questions
from shared.profiles.profile import CheckCalibration, Profile, load_profile, shipped_profiles
from shared.profiles.weights import Server, Weights
from shared.schemas.base import JsonObject, Kind
from shared.schemas.evaluation import ModelUnderTestInfo
from shared.schemas.jobs import JobSpec, MethodInfo, MethodsReply
from shared.schemas.profiles import ProfilesReply, ProfileView
from shared.schemas.questions import ASKED
from shared.schemas.validity import JUDGED, VALIDITY, signals_of


@dataclass(frozen=True, slots=True)
class Plan:
    """A spec with every default filled in. `kind` is that of all `models`: those under test, then the references.

    `proposal`: the values that were chosen for the job.
    """

    methods: list[JobMethod]
    models: list[ModelUnderTestInfo]
    classes: list[str]
    kind: Kind = "classification"
    proposal: ProposedValues | None = None


def plan(spec: JobSpec, profile: Profile, available: Sequence[ModelUnderTestInfo]) -> Plan:
    """Fill in the profile's defaults and check names and parameters. Raises InvalidInput that names what there is.

    `available` models may be empty when the spec tests none. The classes are the spec's, else those of the models.
    """
    parameters = {choice.name: choice.parameters for choice in spec.methods or []}
    parameters = parameters or {name: {} for name in profile.defaults.methods}
    for name in parameters:
        _check_needs(name, profile)
    models = choose_models(spec, profile, available)
    truth = KINDS[announced_kind(spec)]
    kind = kind_of(models, truth.name)
    if kind != truth.name and truth.announced(spec):
        raise InvalidInput(
            f"the ground truth is {truth.truths}, but the model under test {models[0].name!r} {KINDS[kind].does}; "
            f"choose {truth.models}, or leave out `{truth.truths}`"
        )
    if kind in ASKED and spec.questions is None:
        raise InvalidInput(
            f"{models[0].name!r} answers questions: {QUESTIONS_IN_MANIFEST}, and give `questions` in the spec, which "
            "may be `{}`"
        )
    _check_calibration(spec, profile, kind)
    classes = _classes(spec, models, kind)
    calibration = None if spec.calibration is None else profile.calibration[spec.calibration]
    methods = [_method(name, request, profile, kind, calibration) for name, request in parameters.items()]
    for method in methods:
        _check_signals(method, profile)
    _check_beams(methods, profile)
    return Plan(methods, models, classes, kind)


def _classes(spec: JobSpec, models: Sequence[ModelUnderTestInfo], kind: Kind) -> list[str]:
    classes = spec.classes or list(dict.fromkeys(name for model in models for name in model.classes))
    if spec.masks is not None:
        classes = list(mask_reader(spec.masks, spec.label_map).classes)
        refuse_unknown_classes(classes, models)
    models_of_kind, most = KINDS[kind].models, KINDS[kind].most_classes
    if most is not None and len(classes) > most:
        raise InvalidInput(
            f"the {models_of_kind} know {len(classes)} classes, more than {most}; test them in jobs of their own"
        )
    return classes


def _check_calibration(spec: JobSpec, profile: Profile, kind: Kind) -> None:
    """Raise InvalidInput if the check errors that `calibration` names do not apply to this job."""
    if spec.calibration is None:
        return
    if spec.calibration not in profile.calibration:
        calibrated = ", ".join(profile.calibration) or "none"
        raise InvalidInput(
            f"the checks are not calibrated on {spec.calibration!r}; data sets they are calibrated on: {calibrated}"
        )
    measured = profile.calibration[spec.calibration]
    if measured.kind != kind:
        raise InvalidInput(
            f"the errors of the checks on {spec.calibration!r} were measured in jobs of {measured.kind}, "
            f"and this one is of {kind}, which has other checks; leave `calibration` out"
        )
    owned = ("thresholds", "arm_thresholds", "recaption", "validity")
    redundant = {name for method in spec.methods or [] for name in owned if name in method.parameters}
    if redundant:
        raise InvalidInput(
            f"`calibration` is for the profile's own checks; leave out either it or {' and '.join(sorted(redundant))}"
        )


def _check_beams(methods: Sequence[JobMethod], profile: Profile) -> None:
    """Raise InvalidInput if a method asks for a beam search that the profile's captioner does not have."""
    for method in methods:
        if profile.caption.engine == "openai" and getattr(method.parameters, "caption_beams", 1) > 1:
            raise InvalidInput(
                f"the captioner of profile {profile.profile.name!r} is a server, which has no beam search; set "
                f"`caption_beams` of method {method.name!r} to 1, or leave it out"
            )


def methods_listing(profile: Profile) -> MethodsReply:
    """The methods that users choose, with the JSON schemas of their parameters and the profile's defaults in them."""
    listing = []
    for name, method in METHODS.items():
        if not method.listed:
            continue
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


def method_defaults(name: str, profile: Profile, request: JsonObject | None = None) -> JsonObject:
    """The profile's parameters of a method, with the thresholds of its checks where the method takes them.

    A profile without a threshold for `label` gets 0, at which an image that loses the rank of its class is refused.
    Where few-step weights render by default, steps and guidance are theirs, unless the request names others.
    """
    fields = METHODS[name].parameters.model_fields if name in METHODS else {}
    tables: dict[str, Thresholds] = {"thresholds": profile.thresholds, "text_thresholds": profile.text_thresholds}
    if profile.evaluator.second_scorer is not None:
        tables["second_thresholds"] = profile.second_thresholds or UNCALIBRATED
    defaults: JsonObject = {
        table: {check: dict(limits) for check, limits in of_checks.items()}
        for table, of_checks in tables.items()
        if table in fields
    }
    defaults |= _caption_defaults(name, profile)
    defaults |= profile.methods.get(name, {}) | _few_steps(name, profile, request or {})
    if isinstance(thresholds := defaults.get("thresholds"), dict):
        defaults["thresholds"] = {LABEL: {"default": LABEL_BY_RANK}, **thresholds}
    return defaults


def _caption_defaults(name: str, profile: Profile) -> JsonObject:
    """Parameters that suit the profile's captioner, where they are not those that the method's paper has for BLIP-2.

    A chat model takes the prompt for an instruction, so its captions get the domain. A server has no beam search.
    """
    fields = METHODS[name].parameters.model_fields if name in METHODS else {}
    chat: JsonObject = {"caption_prompt": "", "caption_domain": IMAGE_DOMAIN}
    suited = chat if profile.caption.engine != "blip2" else {}
    if profile.caption.engine == "openai":
        suited["caption_beams"] = 1
    return {parameter: value for parameter, value in suited.items() if parameter in fields}


def _few_steps(name: str, profile: Profile, request: JsonObject) -> JsonObject:
    """Steps and guidance of the profile's few-step weights, for a method that they render by default."""
    few_step = profile.diffusion.few_step
    controlled = name in METHODS and issubclass(METHODS[name].parameters, ControlledParameters)
    if few_step is None or not few_step.default or not controlled:
        return {}
    defaults: JsonObject = {"steps": few_step.steps, "guidance": few_step.guidance}
    return {} if any(request.get(parameter, value) != value for parameter, value in defaults.items()) else defaults


def _protected_things(name: str, profile: Profile, kind: Kind) -> JsonObject:
    """The parameter `protect` where truth has places: the things of the profile's segmenter keep their shapes."""
    things = profile.diffusion.keep_labels if profile.diffusion.segmenter and KINDS[kind].localised else []
    takes_protection = name in METHODS and "protection" in METHODS[name].parameters.model_fields
    return {"protect": [*things]} if takes_protection and things else {}


def profiles_listing(active: str) -> ProfilesReply:
    """The shipped profiles, and the active one if it is the operator's own file."""
    names = list(dict.fromkeys([*shipped_profiles(), active]))
    return ProfilesReply(profiles=[_profile_view(load_profile(name), name == active) for name in names])


def _profile_view(profile: Profile, active: bool) -> ProfileView:
    instruct = profile.diffusion.instruct
    roles: dict[str, Weights | Server | None] = {
        "caption": profile.caption.weights,
        "language": profile.language.weights,
        "language adapter": profile.language.adapter,
        "diffusion": profile.diffusion.base,
        "segmenter": profile.diffusion.segmenter,
        "background remover": profile.diffusion.background_remover,
        "depth": profile.diffusion.depth,
        "instruct": instruct.sources[0] if instruct else None,
        "few steps": profile.diffusion.few_step.weights if profile.diffusion.few_step else None,
        "scorer": profile.evaluator.scorer,
        "second scorer": profile.evaluator.second_scorer,
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
        domain="" if profile.evaluator.domain is None else profile.evaluator.domain.name,
        calibrations=list(profile.calibration),
    )


def _check_needs(name: str, profile: Profile) -> None:
    """Raise InvalidInput if the profile lacks optional weights that the method needs."""
    for need in METHODS[name].needs if name in METHODS else ():
        section, key = need.split(".")
        if getattr(getattr(profile, section), key) is None:
            raise InvalidInput(
                f"method {name!r} needs [{need}], which profile {profile.profile.name!r} does not have; add it to the "
                "profile, or choose another method"
            )


def _method(
    name: str, request: JsonObject, profile: Profile, kind: Kind, calibration: CheckCalibration | None
) -> JobMethod:
    """A method with the request's parameters over the calibration's and the profile's, in the method's type."""
    if name not in METHODS:
        listed = ", ".join(choice for choice, method in METHODS.items() if method.listed)
        raise InvalidInput(f"unknown method {name!r}; choose from {listed}")
    defaults = _protected_things(name, profile, kind) | method_defaults(name, profile, request)
    calibrated: dict[str, object] = {}
    if calibration is not None and name in calibration.thresholds:
        # They are for edits; null and sham arms keep the profile's for checks that the calibration leaves out.
        measured, own = calibration.thresholds[name], defaults.get("thresholds")
        of_arms = {**(own if isinstance(own, dict) else {}), **measured}
        calibrated |= {"thresholds": measured, "arm_thresholds": of_arms}
    if calibration is not None and name in calibration.validity_model:
        calibrated["validity"] = calibration.validity_model[name]
    chosen: dict[str, object] = {**defaults, **calibrated, **request}
    for key in ("thresholds", "arm_thresholds"):
        if isinstance(limits := chosen.get(key), dict):
            chosen[key] = {LABEL: {"default": LABEL_BY_RANK}, **limits} if limits else {}
    try:
        parameters = METHODS[name].parameters.model_validate(chosen)
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"the parameters of {name}: {sentence}") from error
    _check_thresholds(name, chosen.get("thresholds"), "thresholds" in {**calibrated, **request}, profile)
    if reason := parameters.refuse_profile(profile):
        raise InvalidInput(f"method {name!r} {reason}")
    return JobMethod(name, parameters)


def _check_signals(method: JobMethod, profile: Profile) -> None:
    """Raise InvalidInput if a method has signals of models that the profile lacks, or a threshold without a model.

    Nor may a model of validity refuse edits by answers of a judge that no audit found sound.
    """
    p = method.parameters
    if not isinstance(p, CheckParameters):
        return
    judge = profile.evaluator.judge
    models = {"object": profile.evaluator.segmenter, "judge": judge, "pairwise": judge}
    tables = {"object": "segmenter", "judge": "judge", "pairwise": "judge"}
    for signal in {*p.signals, *(signals_of(p.validity) if p.validity else ())} & set(models):
        if models[signal] is None:
            raise InvalidInput(
                f"signal {signal!r} of method {method.name!r} needs [evaluator.{tables[signal]}], which profile "
                f"{profile.profile.name!r} does not have; name it in the profile, or leave the signal out"
            )
    unsound = {name for name in JUDGED if p.validity is not None and name in p.validity.signals}
    unsound -= set(counting_questions(profile.evaluator.judge_audit, judge).names)
    if unsound and VALIDITY in method.thresholds:
        raise InvalidInput(
            f"the model of validity of method {method.name!r} weighs {', '.join(sorted(unsound))} of a judge that is "
            "not audited, or not sound at that; run `contrafact audit-judge`, or fit the model without the signal"
        )
    if VALIDITY in method.thresholds and p.validity is None:
        raise InvalidInput(
            f"method {method.name!r} has a threshold for `validity` and no model of it; name a `calibration` that has "
            "one, or give the parameter `validity`"
        )


def _check_thresholds(name: str, thresholds: object, given: bool, profile: Profile) -> None:
    """Raise InvalidInput if thresholds are missing without which the method accepts nearly every image.

    `given`: by a request or a calibration, rather than by the profile; `{}` then turns all checks off.
    """
    limits = thresholds if isinstance(thresholds, dict) else {}
    missing = ", ".join(check for check in METHODS[name].needs_thresholds if check not in limits)
    if missing and not given:
        raise InvalidInput(
            f"method {name!r} needs thresholds of {missing}, which belong to the scorer's weights, and "
            f"profile {profile.profile.name!r} has none; set them in [methods.{name}.thresholds] of a profile of your "
            "own or in the parameter `thresholds`, or choose another method"
        )
    if missing and limits:
        raise InvalidInput(
            f"method {name!r} needs thresholds of {missing} too, because `thresholds` replace all of the profile's; "
            "name them as well, or give `{}` to turn all checks off"
        )
