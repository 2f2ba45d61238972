"""The sentences of a report: what would settle a finding or an effect, and what failed."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.report.advice import next_steps, open_effects, steps_for
from gateway.report.markdown import report_markdown
from gateway.report.page import environment
from gateway.report.words import headline, null_arm, with_code
from gateway.results.wording import effect_sentence
from shared.schemas.effects import Cell, ChangedImages, Confirmation, Panel
from shared.words.wording import NO_FINDING, NO_PAIR_COUNTS
from tests.support.counterfactual_views import counterfactual_view
from tests.support.figures import effect, job_results, results


def test_a_verdict_names_classes_as_findings_do() -> None:
    """An empty <code> stood where a cell is of all classes."""
    cell = Cell(label="", factor="other", value="fog 5", direction="to")
    weak, lost = effect("night", -100).model_copy(update={"standing": "weakness", "cell": cell}), -np.ones(20)
    words = "with the image changed to fog 5 is not recognised: 20 of 20 lost."
    assert effect_sentence(weak, lost, "labelled") == f"all classes {words}"
    bus = weak.model_copy(update={"cell": cell.model_copy(update={"label": "bus"})})
    assert with_code(effect_sentence(bus, lost, "labelled")) == f"<code>bus</code> {words}"


def test_what_settles_a_finding_leaves_out_what_was_done() -> None:
    weakness = effect("night", -60).model_copy(
        update={"standing": "weakness", "changed": ChangedImages(n=12, reviewed=3, valid=3, sample=[])}
    )
    steps = steps_for("JOB", results("dillema", weakness), weakness)
    assert steps[0].startswith("Review its 12 changed images")
    assert any("`contrafact confirm JOB --with shifts --wait`" in step for step in steps)
    assert any("`contrafact dose JOB --wait`" in step for step in steps)
    improvement = weakness.model_copy(update={"standing": "improvement"})
    steps = steps_for("JOB", results("dillema", improvement), improvement)
    assert any("`contrafact confirm JOB --with shifts --wait`" in step for step in steps)
    assert not any("contrafact dose" in step for step in steps), "doses are of weaknesses"
    done = weakness.model_copy(
        update={
            "changed": ChangedImages(n=12, reviewed=12, valid=12, sample=[]),
            "confirmation": Confirmation(job="OTHER", method="shifts", verdict="confirmed", sources=30),
            "panel": Panel(references=["r"], failing=["r"], suspect=True),
        }
    )
    steps = steps_for("JOB", results("dillema", done), done)
    assert steps[0].startswith("Look at its images first")
    assert not any("confirm" in step or "Review" in step for step in steps)
    assert not any("confirm" in step for step in steps_for("JOB", results("corruptions", weakness), weakness))


def test_open_effects_name_the_images_that_would_settle_them_the_fewest_first() -> None:
    figures = results("dillema", effect("snow", -9, sources=30), effect("night", -50, sources=5), effect("fog", -3))
    settled = effect("rain", -30, sources=20).model_copy(update={"images_needed": 12})
    assert open_effects(results("dillema", settled)) == []
    assert open_effects(figures) == [
        "`bus` at night: −50 points on 5 images; about 45 more images of `bus` that get "
        "this change would settle an effect of this size",
        "`bus` with weather changed to snow: −9 points on 30 images, 95 % interval −90 to −30, not significant; "
        "about 270 more images of `bus` that get this change would settle an effect of this size",
    ]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("dillema", "caption unchanged"),
        ("lance", "caption unchanged"),
        ("instruct", "an instruction that changes nothing"),
        ("corruptions", "the source image"),
        ("compose", "its own background"),
        ("of-another-version", "without the change"),
    ],
)
def test_a_pair_says_what_the_null_arm_of_its_method_is(method: str, words: str) -> None:
    """All pairs said that the null arm was rendered again with the caption unchanged."""
    assert words in null_arm(method)
    view = counterfactual_view(0).model_copy(update={"method": method, "null_image": "null"})
    template = environment().from_string('{% import "_pairs.html" as pairs with context %}{{ pairs.pair(view, []) }}')
    page = template.render(view=view, thumbnail=str, pair_link=None)
    assert f'alt="Null arm: {null_arm(method)}"' in page


def test_steps_for_findings_come_before_an_unsettled_drop_which_names_its_model() -> None:
    """ "Submit about 87 more images" for −20 points on 5 images stood before the review of a finding."""
    weakness = effect("night", -60).model_copy(update={"standing": "weakness", "provisional": True})
    weak = results("dillema", weakness)
    small = results("dillema", effect("snow", -40, sources=5)).model_copy(update={"model": "other"})
    large = results("dillema", effect("fog", -90, sources=9)).model_copy(update={"model": "third"})
    steps = next_steps(job_results(small, weak, large))
    assert "Review images" in steps[0]
    settling = [step for step in steps if step.startswith("Settle")]
    assert settling == [steps[-1]]
    assert "changed to fog for `third` (−90 points on 9 images)" in settling[0]
    alone = next_steps(job_results(small))
    assert alone[0].startswith("Settle `bus` with weather changed to snow (−40 points on 5 images)")


def test_without_a_pair_that_counts_nothing_is_said_of_effects() -> None:
    empty = results("dillema").model_copy(update={"counterfactuals": 0})
    text = report_markdown(job_results(empty, accepted=0))
    assert NO_PAIR_COUNTS in text
    assert NO_FINDING not in text
    assert "Provisional" not in text
    assert "## Findings" not in report_markdown(job_results())


def test_a_full_stop_in_the_name_of_a_class_does_not_end_the_headline() -> None:
    lost = "`St. Bernard` at night is not recognised: 14 of 14 lost, all called `Mt. Dog`"
    assert headline(f"{lost}. At least 45 points are lost, 95 % sure.") == (
        lost, "At least 45 points are lost, 95 % sure."
    )  # fmt: skip
    assert headline(f"{lost}.") == (f"{lost}.", "")
