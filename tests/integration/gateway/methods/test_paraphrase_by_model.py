"""The sham edit by the shipped language model: what it writes is a paraphrase, or the rules write one instead."""

from __future__ import annotations

import pytest

from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.methods.paraphrase import LEAD, ParaphraseParameters, by_rules, paraphrase, restates
from gateway.methods.schedule import Inputs
from shared.schemas.base import ImagePayload
from tests.support.captioned_services import Services
from tinyworld.objects.captions import caption, read
from tinyworld.objects.world import CLASSES, sample_scene


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2, 8])
def test_the_paraphrase_keeps_what_the_caption_says(shipped: Services, number: int) -> None:
    """The shipped model is not trained to paraphrase: it repeats itself, or the example of the question."""
    scene = sample_scene("demo", number)
    text = caption(scene, number)
    image, task = MethodImage("source", ImagePayload(png=b""), scene.label), TaskDescription("name it", CLASSES)
    inputs = Inputs("shifts", "1", image, task, shipped, ParaphraseParameters(paraphrase="model"), 1)
    sham = paraphrase(inputs, text)
    assert sham is not None
    (exchange,) = sham.exchanges or (None,)
    by_model = sham.edit.new_caption != by_rules(text, list(CLASSES))
    assert not by_model or (exchange is not None and restates(text, sham.edit.new_caption, CLASSES))
    assert read(sham.edit.new_caption.removeprefix(f"{LEAD} ")) == read(text)
    assert (sham.edit.caption, sham.edit.changes) == (text, ())
