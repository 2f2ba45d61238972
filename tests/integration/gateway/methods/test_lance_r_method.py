"""LANCE-R: random words, filled by the shipped masked language model, and the rows; other services are small."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gateway.jobs.choices import methods_listing, plan
from gateway.methods.counterfactual import MethodCounterfactual, MethodImage, TaskDescription
from gateway.methods.lance_r import LanceRParameters, lance_r
from llm_service.app import create_app
from shared.media.images import encode
from shared.problems import InvalidInput
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.jobs import JobSpec
from shared.schemas.language import FillReply, FillRequest
from shared.service.settings import ServiceSettings
from tests.support.lance_services import CaptioningServices, LanceServices
from tests.support.listening import listen
from tests.support.small_services import serve

CAPTION = "A photo of a small red bus in a city. It is rainy at night."
SOURCE = MethodImage("source-1", ImagePayload(png=encode(np.full((32, 32, 3), 128, np.uint8))), "bus")
TASK = TaskDescription("name the vehicle", ("car", "bus", "boat"))


class FillingServices(CaptioningServices):
    """The clients, with captions that a test sets; `gaps` and `fillings` are of the last request for words."""

    source_caption = CAPTION
    new_caption = CAPTION

    def fill(self, request: FillRequest) -> FillReply:
        self.gaps = request.gaps
        self.fillings = super().fill(request).fillings
        return FillReply(fillings=self.fillings)


@pytest.fixture(scope="module")
def language() -> Iterator[str]:
    """The shipped llm_service."""
    with listen(create_app(ServiceSettings(profile="tiny", device="cpu", threads=1))) as url:
        yield url


@pytest.fixture
def services(language: str) -> Iterator[FillingServices]:
    with serve(LanceServices()) as url:
        others = dict.fromkeys(("caption_service", "diffusion_service", "evaluator_service"), url)
        clients = FillingServices({**others, "llm_service": language})  # type: ignore[dict-item]
        yield clients
        clients.close()


def lance_r_of(services: FillingServices, seed: int = 1, **parameters: Any) -> list[MethodCounterfactual]:
    """Without sham arms, unless `reference` is given."""
    anything = {"caption": {"default": -2.0}, "word": {"default": -2.0}}
    defaults = {
        "self_fractions": [0.7, 0.4],
        "steps": 4,
        "thresholds": anything,
        "reference": "null",
        "caption_prompt": "",
    }
    chosen = defaults | parameters
    return list(lance_r(SOURCE, TASK, services, LanceRParameters.model_validate(chosen), seed))


def test_one_word_is_replaced_by_the_most_probable_other_one(services: FillingServices) -> None:
    rows = lance_r_of(services)
    edits = [row for row in rows if row.edit is not None]
    assert len(edits) == 4
    for row, gap, fillings in zip(edits, services.gaps, services.fillings, strict=False):
        assert row.edit is not None
        (change,) = row.edit.changes
        assert gap.before + change.from_phrase + gap.after == CAPTION
        assert gap.before + change.to_phrase + gap.after == row.edit.new_caption
        words = [filling.word for filling in fillings if filling.word != change.from_phrase.lower()]
        assert change.to_phrase.lower() == words[0]
        assert change.factor == "other"
    assert not {"a", "of", "in", "it", "is", "at"} & {
        row.edit.changes[0].from_phrase.lower() for row in edits if row.edit
    }


def test_the_seed_decides_which_words_are_replaced(services: FillingServices) -> None:
    edits = [[row.edit for row in lance_r_of(services, seed)] for seed in (1, 1, 2)]
    assert edits[0] == edits[1] != edits[2]
    many = [row.edit for row in lance_r_of(services, counterfactuals_per_image=12) if row.edit]
    assert len({edit.new_caption for edit in many}) == 12, "the caption has eight words that carry meaning"
    services.source_caption = "It is."
    assert lance_r_of(services) == []


def test_edits_share_requests_and_have_null_arms_and_every_score(services: FillingServices) -> None:
    rows = lance_r_of(services)
    first, second = services.edits
    assert [edit.prompt for edit in first.edits] == [row.edit.new_caption for row in rows if row.edit]
    assert [edit.prompt for edit in second.edits] == [CAPTION]
    for row in (row for row in rows if row.arm == "edit"):
        assert {"likeness", "match", "caption", "word", "direction", "label"} <= set(row.scores)
        null = rows[row.null_ordinal or 0]
        assert (null.arm, null.lineage["self_fraction"]) == ("null", row.lineage["self_fraction"])


def test_an_image_nearer_to_the_old_word_is_refused(services: FillingServices) -> None:
    rows = lance_r_of(services, thresholds={"caption": {"default": -2.0}}, self_fractions=[0.5])
    edits = [row for row in rows if row.arm == "edit"]
    assert edits
    for row in edits:
        assert (row.verdict.check == "word") == (row.scores["word"] < 0), row.verdict


@pytest.mark.parametrize(
    ("method", "table", "need"), [("lance-r", "language", "masked_words"), ("lance", "evaluator", "text_embedder")]
)
def test_a_profile_without_the_weights_is_refused(method: str, table: str, need: str) -> None:
    tiny = load_profile("tiny")
    section = getattr(tiny, table).model_copy(update={need: None})
    spec = JobSpec.model_validate({"task": "name it", "methods": [{"name": method}], "models": []})
    with pytest.raises(InvalidInput, match=rf"needs \[{table}\.{need}\]"):
        plan(spec, tiny.model_copy(update={table: section}), [])
    assert plan(spec, tiny, []).methods[0].name == method
    assert plan(spec.model_copy(update={"methods": []}), tiny.model_copy(update={table: section}), []).methods


def test_it_is_listed_with_the_profiles_defaults() -> None:
    (listed,) = (method for method in methods_listing(load_profile("tiny")).methods if method.name == "lance-r")
    properties: Any = listed.parameters["properties"]
    assert properties["steps"]["default"] == 16
