"""A calibration changes how edits are judged, not how their null and sham arms are: a lost class refuses the pair."""

from __future__ import annotations

import pytest

from gateway.jobs.choices import plan
from gateway.methods import METHODS
from gateway.model_services.clients import ModelServices
from shared.profiles.profile import load_profile
from shared.schemas.evaluation import EmbedReply, EmbedRequest
from shared.schemas.jobs import JobSpec
from shared.schemas.language import GenerateReply, GenerateRequest
from tests.support.lance_services import SOURCE, TASK, LanceServices
from tests.support.small_services import SmallServices, open_clients

SHIFT = {"phrase": "rainy", "replaces": ["sunny"], "factor": "weather", "value": "rain"}
CHOSEN: dict[str, dict[str, object]] = {
    "dillema": {"counterfactuals_per_image": 2, "factors": ["weather"], "reference": "sham"},
    "shifts": {"shifts": [SHIFT]},
}


class Renderings(LanceServices):
    """The scorer sees the class of the source in every image, or, if it is lost, in the source alone."""

    def __init__(self, lost: bool) -> None:
        self._lost = lost
        super().__init__()

    def _generate(self, request: GenerateRequest) -> GenerateReply:
        return SmallServices._generate(self, request)  # the replies to DILLEMA's questions

    def _embeddings(self, request: EmbedRequest) -> EmbedReply:
        shown, other = [1.0, 0.0], [0.0, 1.0]
        return EmbedReply(
            images=[other if self._lost and image != SOURCE.image else shown for image in request.images],
            texts=[shown if "car" in text else other for text in request.texts],
            logit_scale=10.0,
        )


@pytest.mark.parametrize("calibration", [None, "tinyworld"])
@pytest.mark.parametrize("name", CHOSEN)
@pytest.mark.parametrize(("lost", "check"), [(False, ""), (True, "label")])
def test_an_arm_that_lost_its_class_is_refused_with_and_without_a_calibration(
    name: str, calibration: str | None, lost: bool, check: str
) -> None:
    """With `calibration`, edits are judged by `validity` alone, and no arm has that score: every arm passed."""
    choice = {"name": name, "parameters": CHOSEN[name]}
    spec = JobSpec.model_validate({"task": "name it", "models": [], "methods": [choice], "calibration": calibration})
    (method,) = plan(spec, load_profile("tiny"), []).methods
    assert ("validity" in method.thresholds) == (calibration is not None)
    with open_clients(Renderings(lost), ModelServices) as services:
        rows = list(METHODS[name].function(SOURCE, TASK, services, method.parameters, 1))
    edits = [row for row in rows if row.arm == "edit" and row.image is not None]
    assert edits
    assert {row.null_check for row in edits} == {check}
    assert {row.sham_check for row in edits} == {check}
