"""The kits' tables print the figures of the results, each under its row and column, and the papers' numbers beside."""

from __future__ import annotations

import re
from dataclasses import replace

from research.papers.dillema_printed import IMAGENET, ROADS
from research.papers.lance_printed import PRINTED
from research.papers.printed import Measured, Printed, printed_table
from research.papers.retraining import pixels_found_table
from research.papers.tables import dillema_tables, lance_tables
from research.statistics.rates import wilson
from shared.schemas.effects import EditCluster, Estimate, Interval, MeanOverlap, ProbabilityChange
from shared.schemas.metrics import Accuracy, AllOrNone, PaperMetrics, SegmentationScores
from shared.schemas.repairs import ArmFigures, Paired, RepairResult, SetFigures
from shared.schemas.results import FlippedReviews, HowMade, JobResults, MethodReviews, ModelResults
from shared.schemas.studies import QuestionFigures, RaterFigures, StudyRequest, StudyResults
from tests.support.repair_views import finished_repair

MODEL = "lance-resnet-50"


def level(k: int) -> Accuracy:
    """Of 200 originals 160 are right; 35 of the 50 counterfactuals, whose own 45 of 50 originals are."""
    return Accuracy(
        k=k,
        originals=wilson(45, 50),
        nulls=wilson(44, 50),
        counterfactuals=wilson(35, 50),
        delta=-0.2,
        delta_null=-0.02,
        all_originals=wilson(160, 200),
        delta_all=-0.1,
    )


def metrics() -> PaperMetrics:
    change = ProbabilityChange(factor="weather", n=9, sources=7, value=0.25, low=0.125, high=0.5, null=0.0625)
    return PaperMetrics(
        accuracy=[level(1), level(5)],
        error_rate=wilson(15, 50),
        error_rate_null=wilson(6, 50),
        delta_probability=-0.1,
        mean_absolute_delta_probability=0.2,
        mean_absolute_delta_probability_null=0.1,
        flips=wilson(12, 50),
        flips_null=wilson(3, 50),
        all_or_none=AllOrNone(k=3, all_fail=wilson(4, 16), none_fail=wilson(9, 16)),
        probability_changes=[change],
    )


CLUSTER = EditCluster(
    label="bus",
    phrases=["a|b", "in the rain"],
    edits=31,
    sources=28,
    screened=-0.4,
    confirming_sources=14,
    delta_accuracy=-0.3,
    interval=Interval(low=-0.6, high=-0.1, level=0.95, kind="betting"),
    q_value=0.012,
    standing="weakness",
)


def reviews(method: str, model: str) -> MethodReviews:
    valid, flipped = Estimate(value=0.997, low=0.97, high=1), Estimate(value=0.827, low=0.75, high=0.9)
    return MethodReviews(
        method=method,
        accepted=40,
        rejected=0,
        undecided=0,
        by_lot=40,
        more=0,
        more_rejected=10,
        valid=valid,
        valid_rejected=None,
        accepted_if_valid=None,
        accepted_if_invalid=None,
        flipped=[FlippedReviews(model=model, reviewed=12, flipped=12, valid=flipped, of_valid=None)],
        edit_shown=None,
        realism=None,
        graded=0,
    )


def figures(method: str, model: str) -> ModelResults:
    return ModelResults(
        model=model,
        method=method,
        relation="labelled",
        sources=50,
        counterfactuals=50,
        left_out=0,
        cells=[],
        metrics=metrics(),
        clusters=[CLUSTER],
    )


def rater(answered: int, *, excluded: bool) -> RaterFigures:
    return RaterFigures(
        rater="r", name="", assigned=60, answered=answered, correct=6, controls=6, attention_missed=0, excluded=excluded
    )


def study_results(*answers: QuestionFigures, **request: str) -> tuple[StudyRequest, StudyResults]:
    raters = [rater(57, excluded=False), rater(3, excluded=True)]
    return StudyRequest.model_validate(request), StudyResults(
        study="s", job="j", items=50, complete=50, raters=raters, dropped_controls=[], agreement={}, figures=[*answers]
    )


def results(*methods: str, model: str = MODEL) -> JobResults:
    made = HowMade(
        job="j", task_description="", profile="paper", seed=0, parameters={}, services={}, versions={}, analysis_seed=0
    )
    return JobResults(
        sources=200,
        sources_failed=0,
        provisional=True,
        reviews=[reviews(method, model) for method in methods],
        results=[figures(method, model) for method in methods],
        funnels=[],
        costs=[],
        made=made,
    )


def table(page: str, title: str) -> dict[str, dict[str, str]]:
    """A table of the page: first cell of a row → name of a column → cell."""
    lines = page.split(f"### {title}")[1].split("\n### ")[0].splitlines()
    heads, _, *body = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    names = [head.strip() for head in heads]
    return {row[0].strip(): dict(zip(names, map(str.strip, row), strict=True)) for row in body}


def beside(numbers: tuple[Printed, ...], measured: Measured) -> dict[str, tuple[str, str]]:
    """The paper's number and ours by what they are of."""
    lines = printed_table(numbers, measured).splitlines()[4:]
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    return {what: (paper, here.removesuffix(" |")) for _, what, paper, here in cells}


def test_table_2_compares_with_all_originals() -> None:
    """It once showed the originals of the first method's accepted edits alone."""
    page = lance_tables(results("lance"), {"lance": "3.0 ± 1.0"})
    rows = table(page, "Accuracy by test set (table 2)")
    assert rows["originals, all"][MODEL].startswith("80 % (160/200;")
    assert rows["LANCE"][MODEL].startswith("70 % (35/50;")
    assert rows["LANCE"]["KID × 1000"] == "3.0 ± 1.0"
    assert rows["LANCE, less all originals"][MODEL] == "-10.0; -10.0"
    assert rows["LANCE, Δacc of pairs"][MODEL] == "-20.0; -20.0"
    assert rows["LANCE, null arms, Δacc of pairs"][MODEL] == "-2.0; -2.0"
    assert rows["LANCE, their originals"][MODEL].startswith("90 % (45/50;"), "the paper prints 576 of its 750 originals"
    assert rows["LANCE, less their originals"][MODEL] == "-20.0; -20.0"


def test_figure_3_stands_beside_the_null_arms_and_clusters_beside_their_test() -> None:
    page = lance_tables(results("lance"), {})
    (change,) = table(page, "Sensitivity by type of edit (figure 3)").values()
    assert change["mean \\|Δp\\|"] == "0.250 (0.125–0.500)"
    assert change["of their null arms"] == "0.062"
    assert change["edits (source images)"] == "9 (7)"
    (cluster,) = table(page, "Clusters of edits (section 4.2)").values()
    assert cluster["phrases"] == "a\\|b; in the rain", "a phrase never splits its row"
    assert cluster["second half (images)"] == "-30.0 (14)"
    assert cluster["95 % interval"] == "-60.0 to -10.0"
    assert cluster["standing"] == "weakness"
    (valid,) = table(page, "Validity, by reviews").values()
    assert valid["valid"] == "99.7 % (97–100)"


def test_table_i_has_errors_on_all_originals_and_both_shares_of_valid_images() -> None:
    rows = table(dillema_tables(results("dillema")), "Errors and validity (table I)")
    ours = rows[MODEL]
    assert ours["originals"].startswith("20 % (40/200;")
    assert ours["originals of accepted"].startswith("10 % (5/50;")
    assert ours["all fail"].endswith("k = 3")
    assert (ours["valid"], ours["valid, of flipped"]) == ("99.7 % (97–100)", "82.7 % (75–90)")


def test_lances_numbers_stand_beside_those_of_the_job() -> None:
    study = QuestionFigures(question="realism", method="lance", items=50, mean=Estimate(value=4.25, low=4.0, high=4.5))
    domain = study.model_copy(update={"factor": "domain", "items": 10, "mean": Estimate(value=3.9, low=3.1, high=4.7)})
    measured = Measured(
        results("reconstruction", "lance-r", "lance"),
        distances={"lance": "3.0 ± 1.0"},
        proposed={("lance", "subject"): 1234},
        studies=[study_results(study, domain)],
    )
    rows = beside(PRINTED, measured)
    paper, here = rows["ResNet-50, LANCE, acc@1"]
    assert (paper, here[:15]) == ("74.01 %", "70 % (35/50; 56")
    assert rows["ResNet-50, original, acc@5"][1].startswith("80 % (160/200;")
    assert rows["ResNet-50, LANCE, Δacc@1"] == ("-5.8", "-10.0"), "equation 3 compares with all originals"
    assert rows["FID, LANCE"] == ("55.4", "KID × 1000: 3.0 ± 1.0")
    assert rows["of these left out by hand"] == ("8", "0 of 40 reviewed")
    assert rows["edits of captions, subject"] == ("6.2k", "1,234")
    assert rows["realism, 1 to 5, overall"] == ("4.2±0.5", "4.2 (4.0–4.5), n = 50")
    assert rows["realism, 1 to 5, domain"] == ("3.9±0.8", "3.9 (3.1–4.7), n = 10")
    assert rows["realism, 1 to 5, object"][1] == "no study with --per-factor has asked this"
    assert rows["fidelity, 1 to 5, overall"][1] == "no study has asked this"
    assert rows["CLIP, LANCE, acc@1"] == ("48.27 %", "–"), "a model that the job does not have"


def test_dillemas_numbers_stand_beside_those_of_the_job() -> None:
    study = QuestionFigures(
        question="label_kept", method="dillema", items=50, decided=wilson(47, 48), no=1, undecided=2
    )
    measured = Measured(results("dillema", model="dillema-resnet-18"), studies=[study_results(study)], hours=1.5)
    rows = beside(IMAGENET, measured)
    assert rows["ResNet18, error, originals"][0] == "5.26 %"
    assert rows["ResNet18, error, originals"][1].startswith("20 % (40/200;")
    assert rows["ResNet18, error, DILLEMA"][1].startswith("30 % (15/50;")
    assert rows["images that always fail, of 5"][1].endswith("k = 3")
    assert rows["labels kept (300 images)"][1] == "98 % (47/48; 89–100); 2 of 50 without consensus"
    assert rows["labels kept where ResNet18 fails (100 images)"] == ("82.7 %", "82.7 % by reviews")
    assert rows["mean error, DILLEMA"] == ("47.0 %", "–"), "a mean of three models, of which the job has one"
    assert rows["ResNet18 retrained, originals"] == ("+20.19 %", "retrain with --repair")
    assert rows["usable answers, both data sets"] == ("2,380 of 2,500", "57 of 60")

    wrong = study.model_copy(update={"decided": wilson(30, 36), "undecided": 14})
    by_people = study_results(wrong, sample="misclassified", model="dillema-resnet-18")
    rows = beside(IMAGENET, replace(measured, studies=[by_people, *measured.studies]))
    assert rows["labels kept where ResNet18 fails (100 images)"][1].startswith("83 % (30/36;")
    assert rows["labels kept (300 images)"][1].startswith("98 % (47/48;")


def test_a_study_of_one_element_stands_beside_figure_5_and_not_beside_all_labels() -> None:
    kept = QuestionFigures(question="label_kept", method="dillema", items=15, decided=wilson(11, 13), no=2, undecided=2)
    measured = Measured(results("dillema"), studies=[study_results(kept, element="pedestrian")])
    rows = beside(ROADS, measured)
    assert rows["pedestrians kept (15 questions, 2 discarded)"][1].startswith("85 % (11/13;")
    assert rows["roads kept (100 questions, 7 discarded)"][1] == "no study with --element road"
    assert beside(IMAGENET, measured)["labels kept (300 images)"][1] == "no study has asked this"


def test_retraining_shows_the_pixels_of_pedestrians_that_are_found() -> None:
    scores = SegmentationScores(
        images=6,
        pixels=1000,
        mean_iou=0.5,
        accuracy=0.8,
        mean_accuracy=0.6,
        iou=[0.7, 0.3],
        class_accuracy=[0.9, 0.38],
        class_pixels=[900, 100],
        confusion=[],
    )
    before = ArmFigures(
        arm="before",
        accuracy=MeanOverlap(value=0.5, low=0.4, high=0.6, n=6, sources=6),
        against_before=None,
        segmentation=scores,
    )
    judged = SetFigures(
        set="originals",
        sources=6,
        images=6,
        arms=[before],
        best_control="originals",
        against_best_control=Paired(difference=0, interval=None, sources=6),
    )
    result = RepairResult(
        classes=["road", "pedestrian"],
        sources_trained_on=6,
        sources_held_out=6,
        counterfactuals_trained_on=6,
        values_not_trained_on=[],
        sets=[judged],
        cells=[],
        won_back=None,
        sentences=[],
        versions={},
    )
    repair = finished_repair().model_copy(update={"result": result})
    rows = beside(ROADS, Measured(results("dillema"), repairs=[repair]))
    assert rows["mIoU, retrained, originals"] == ("85.32 → 88.76 %", "50.00 % → –")
    assert rows["pedestrian, retrained, counterfactuals"] == ("38 → 62 %", "– → –")
    (row,) = table(pixels_found_table([repair], ["pedestrian"]), "Pixels of things that are found").values()
    assert (row["class"], row["pixels found"], row["of pixels"]) == ("pedestrian", "38.00 %", "100 in 6 images")
    assert not pixels_found_table([finished_repair()], ["pedestrian"])
