"""Which fraction an edit keeps at other doses, what is dosed, and which edits have no dose."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.database.tables import Counterfactual, Job
from gateway.follow_ups import doses
from gateway.follow_ups.doses import _fraction
from gateway.methods import read_method
from shared.problems import Conflict
from shared.profiles.instruct import Instruct, InstructPix2Pix, InstructServer
from shared.profiles.profile import load_profile
from tests.support.figures import effect, job_results, results

_WEIGHTS = {"hub": "someone/editor", "revision": "0" * 40, "dtype": "float32", "gigabytes": 1, "licence": "none"}
PIX2PIX = InstructPix2Pix.model_validate({"engine": "instruct-pix2pix", "weights": _WEIGHTS})
_URL = {"url": "http://images/v1", "model": "m", "revision": "1", "licence": "none", "gigabytes": 1}
SERVER = InstructServer.model_validate({"engine": "server", "server": _URL, "fields": {"seed": "seed"}})


@pytest.mark.parametrize(("lineage", "fraction"), [({"self_fraction": 0.7, "cross_fraction": 0.4}, 0.7), ({}, 0.0)])
def test_a_sweeps_edit_keeps_the_fraction_that_its_lineage_records(lineage: dict[str, float], fraction: float) -> None:
    assert _fraction(Counterfactual(lineage=lineage), read_method("lance", {})) == fraction


@pytest.mark.parametrize(
    ("engine", "guidance", "parameter"), [(PIX2PIX, 7.5, "guidance"), (PIX2PIX, 1, "wording"), (SERVER, 7.5, "wording")]
)
def test_the_wording_is_dosed_where_the_editor_has_no_guidance(
    engine: Instruct, guidance: float, parameter: str
) -> None:
    diffusion = load_profile("tiny").diffusion.model_copy(update={"instruct": engine})
    assert read_method("instruct", {"guidance": guidance}).parameters.dosed(None, diffusion) == parameter


def test_edits_with_several_changes_have_no_dose(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Counterfactual(id="e", source_image_id="s", changes=[{"factor": "weather"}, {"factor": "time"}], lineage={})
    monkeypatch.setattr(doses, "edits_of_cell", lambda *_: [both])
    weak = effect("night", -50).model_copy(update={"standing": "weakness"})
    session: Any = None  # nothing is left to ask it about
    with pytest.raises(Conflict, match="edits_per_counterfactual 1"):
        doses._edits(session, Job(seed=0), job_results(results("dillema", weak)), read_method("dillema", {}), 10)
