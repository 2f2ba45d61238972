"""Every shipped profile can plan every method, with parameters that its captioner takes."""

from __future__ import annotations

import pytest

from gateway.jobs.choices import plan
from gateway.methods import METHODS
from shared.problems import InvalidInput
from shared.profiles import load_profile, shipped_profiles
from shared.schemas.jobs import JobSpec

# The drawn roads have no text embedder and no masked words; only the modern profiles have an editor for instructions.
LACKING = {("tiny-roads", "lance"), ("tiny-roads", "lance-r")} | {
    (name, "instruct") for name in ("tiny", "tiny-roads", "paper")
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


def test_beams_that_a_server_does_not_have_are_refused_in_the_plan() -> None:
    with pytest.raises(InvalidInput, match="caption_beams"):
        plan(spec_of("lance", caption_beams=5), load_profile("modern"), [])
    (lance,) = plan(spec_of("lance", caption_beams=5), load_profile("paper"), []).methods
    assert getattr(lance.parameters, "caption_beams", 0) == 5


def test_signals_of_models_that_the_profile_lacks_are_refused_in_the_plan() -> None:
    for signal, table in (("object", "segmenter"), ("judge", "judge")):
        with pytest.raises(InvalidInput, match=rf"evaluator\.{table}"):
            plan(spec_of("dillema", signals=[signal]), load_profile("tiny"), [])
    (method,) = plan(spec_of("dillema", signals=["recaption"]), load_profile("tiny"), []).methods
    assert getattr(method.parameters, "signals", None) == ("recaption",)


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


def test_a_threshold_without_a_model_of_validity_is_refused_in_the_plan() -> None:
    with pytest.raises(InvalidInput, match="calibration"):
        plan(spec_of("dillema", thresholds={"validity": {"default": 0.5}}), load_profile("tiny"), [])
