"""Every shipped profile can plan every method, with parameters that its captioner takes."""

from __future__ import annotations

import pytest

from gateway.jobs.choices import plan
from gateway.methods import METHODS
from gateway.methods.checks import judge
from gateway.methods.counterfactual import Change, Edit
from gateway.methods.instruct import InstructParameters
from gateway.methods.inverted import InversionParameters, SweepParameters
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile, shipped_profiles
from shared.schemas.jobs import JobSpec
from shared.schemas.validity import SignalWeight
from tests.support.audited_judge import JUDGE, audit_of

# The drawn roads have no text embedder and no masked words, `paper` no editor for instructions, the modern ones no
# thresholds for LANCE.
LACKING = {
    ("paper", "instruct"),
    ("paper-tgi", "instruct"),
    *(
        (profile, method)
        for profile in ("tiny-roads", "modern", "modern-24gb", "modern-80gb")
        for method in ("lance", "lance-r")
    ),
}


def spec_of(name: str, **parameters: object) -> JobSpec:
    return JobSpec.model_validate(
        {"task": "name it", "methods": [{"name": name, "parameters": parameters}], "models": []}
    )


@pytest.mark.parametrize("profile_name", shipped_profiles())
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.listed])
def test_every_profile_plans_every_method(profile_name: str, method: str) -> None:
    """`modern` refused four methods at their first image, since its captioner has no beam search."""
    profile = load_profile(profile_name)
    if (profile_name, method) in LACKING:
        with pytest.raises(InvalidInput, match="needs"):
            plan(spec_of(method), profile, [])
        return
    (planned,) = plan(spec_of(method), profile, []).methods
    beams = getattr(planned.parameters, "caption_beams", 1)
    prompt = getattr(planned.parameters, "caption_prompt", "")
    assert beams == 1 or profile.caption.engine != "openai"
    assert not prompt or profile.caption.engine == "blip2", "a chat model takes a prompt for an instruction"
    of_drawings = profile_name.startswith("tiny") or profile.profile.base == "tiny"  # whose captions name their style
    if method in ("lance", "lance-r") and not of_drawings:
        domain = getattr(planned.parameters, "caption_domain", None)
        assert (domain or prompt) == "a photo of", "an edit of the domain has something to replace"


def test_the_profile_of_the_papers_has_their_inversion_and_the_authors_prompt_to_prompt() -> None:
    """The kit `lance` compared the paper's null-text control with the autoencoder's round trip."""
    profile = load_profile("paper")
    for name in ("reconstruction", "lance", "lance-r"):
        (parameters,) = (method.parameters for method in plan(spec_of(name), profile, []).methods)
        assert isinstance(parameters, InversionParameters)
        assert (parameters.inversion, parameters.steps, parameters.guidance) == ("null_text", 50, 7.5)
        if name == "reconstruction":
            continue
        assert isinstance(parameters, SweepParameters)
        assert (parameters.attention, parameters.reweight, parameters.blend) == ("refine", 2.0, False)
        assert (parameters.cross_fraction, parameters.self_fractions) == (0.8, (0.4, 0.5, 0.6, 0.7, 0.8, 0.9))


def test_beams_that_a_server_does_not_have_are_refused_in_the_plan() -> None:
    with pytest.raises(InvalidInput, match="caption_beams"):
        plan(spec_of("shifts", caption_beams=5), load_profile("modern"), [])
    (lance,) = plan(spec_of("lance", caption_beams=5), load_profile("paper"), []).methods
    assert getattr(lance.parameters, "caption_beams", 0) == 5


def test_thresholds_of_the_job_replace_those_that_a_profile_lacks_for_lance() -> None:
    limits = {"likeness": {"default": 0.5}, "match": {"default": 0.0}, "direction": {"default": 0.1}}
    (lance,) = plan(spec_of("lance", thresholds=limits), load_profile("modern"), []).methods
    assert limits.items() <= lance.thresholds.items()


@pytest.mark.parametrize("profile_name", shipped_profiles())
def test_thresholds_of_a_request_keep_the_rank_of_the_label_unless_they_name_it(profile_name: str) -> None:
    """Any threshold in a request turned the check of the label off."""
    profile = load_profile(profile_name)
    limits = {"caption": {"default": 0.1}}
    (method,) = plan(spec_of("dillema", thresholds=limits, arm_thresholds=limits), profile, []).methods
    lost = {"label": 0.001, "label_margin": -0.99, "label_rank": 2.0, "label_rank_limit": 1.0, "caption": 0.5}
    edit = Edit((Change("weather", "sun", "snow", "clear", "snow"),), "a bus in sun", "a bus in snow")
    assert judge(lost, edit, method.thresholds).check == judge(lost, edit, method.thresholds_for_arms).check == "label"
    (named,) = plan(spec_of("dillema", thresholds={**limits, "label": {"default": -1}}), profile, []).methods
    assert judge(lost, edit, named.thresholds).accepted
    (none,) = plan(spec_of("dillema", thresholds={}), profile, []).methods
    assert none.thresholds == {}


def test_thresholds_of_a_request_for_lance_name_all_that_it_needs() -> None:
    with pytest.raises(InvalidInput, match="needs thresholds of likeness, match too"):
        plan(spec_of("lance", thresholds={"direction": {"default": 0.1}}), load_profile("tiny"), [])


def test_signals_of_models_that_the_profile_lacks_are_refused_in_the_plan() -> None:
    for signal, table in (("object", "segmenter"), ("judge", "judge")):
        with pytest.raises(InvalidInput, match=rf"evaluator\.{table}"):
            plan(spec_of("dillema", signals=[signal]), load_profile("tiny"), [])
    (method,) = plan(spec_of("dillema", signals=["recaption"]), load_profile("tiny"), []).methods
    assert getattr(method.parameters, "signals", None) == ("recaption",)


@pytest.mark.parametrize("name", ["tiny", "tiny-roads"])
def test_in_the_tiny_profiles_a_rule_words_instructions_since_their_language_model_writes_none(name: str) -> None:
    profile = load_profile(name)
    (instruct,) = plan(spec_of("instruct"), profile, []).methods
    p = instruct.parameters
    assert isinstance(p, InstructParameters)
    assert (p.instructions, p.wording, p.steps, p.guidance) == ((), "rule", 1, 1.0)
    (own,) = plan(spec_of("instruct", instructions=["Make it rainy."]), profile, []).methods
    assert [given.name for given in getattr(own.parameters, "instructions", ())] == ["Make it rainy."]


def test_no_errors_of_the_checks_are_claimed_for_the_tiny_editors() -> None:
    """They were measured on the output of other editors."""
    for name in ("tiny", "tiny-roads"):
        profile = load_profile(name)
        assert all("instruct" not in calibration.methods for calibration in profile.calibration.values())


def test_a_calibration_brings_its_model_of_validity_and_its_threshold() -> None:
    profile = load_profile("tiny")
    calibration = profile.calibration["tinyworld"]
    assert calibration.judged_by == "models"
    assert calibration.scorer == profile.evaluator.scorer.info("scorer").revision
    for name in ("dillema", "lance"):
        spec = spec_of(name).model_copy(update={"calibration": "tinyworld"})
        (method,) = plan(spec, profile, []).methods
        assert getattr(method.parameters, "validity", None) == calibration.validity_model[name]
        assert method.thresholds["validity"] == calibration.thresholds[name]["validity"]
    (plain,) = plan(spec_of("dillema"), profile, []).methods
    assert getattr(plain.parameters, "validity", "missing") is None


@pytest.mark.parametrize(("sound", "refused"), [(None, True), (["judge_value"], True), (["judge_label"], False)])
def test_a_judge_refuses_edits_only_where_its_audit_found_it_sound(sound: list[str] | None, refused: bool) -> None:
    profile = load_profile("tiny")
    weight = SignalWeight(mean=0.0, scale=1.0, weight=1.0)
    model = (
        profile.calibration["tinyworld"]
        .validity_model["dillema"]
        .model_copy(update={"signals": {"judge_label": weight}})
    )
    audit = None if sound is None else audit_of(JUDGE, sound)
    evaluator = profile.evaluator.model_copy(update={"judge": JUDGE, "judge_audit": audit})
    audited = profile.model_copy(update={"evaluator": evaluator})
    spec = spec_of("dillema", validity=model.model_dump(mode="json"), thresholds={"validity": {"default": 0.5}})
    if not refused:
        (method,) = plan(spec, audited, []).methods
        assert getattr(method.parameters, "validity", None) == model
        return
    with pytest.raises(InvalidInput, match="audit-judge"):
        plan(spec, audited, [])
    plan(spec_of("dillema", signals=["judge", "pairwise"]), audited, [])  # to be asked is no verdict


def test_a_threshold_without_a_model_of_validity_is_refused_in_the_plan() -> None:
    with pytest.raises(InvalidInput, match="calibration"):
        plan(spec_of("dillema", thresholds={"validity": {"default": 0.5}}), load_profile("tiny"), [])
