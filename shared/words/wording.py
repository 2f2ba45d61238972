"""Results in words and formatted figures, the same in terminals, on pages and in the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.schemas.effects import BEYOND, Cell, CellEffect, Estimate, Interval, Metric, Rate
from shared.schemas.evaluation import TokenUsage
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import Funnel, JobJudge, JobResults, MethodReviews, Relation

# What a phrase says of a time of day, which the language models name with the weather.
TIMES_OF_DAY: Mapping[str, str] = {
    "dawn": "at dawn", "sunrise": "at sunrise", "morning": "in the morning", "day": "by day", "daytime": "by day",
    "noon": "at noon", "afternoon": "in the afternoon", "sunset": "at sunset", "dusk": "at dusk",
    "twilight": "at twilight", "evening": "in the evening", "night": "at night", "midnight": "at midnight",
}  # fmt: skip
NO_FINDING = "No finding: no loss or gain of more than 5 points is established."
NO_PAIR_COUNTS = "No pair of images counts, so nothing was compared."


class ScoreWords(NamedTuple):
    """What is said of the scores of a metric.

    `unit` of an effect, `share`: "83 % right", `effect` in the head of a table, and the verbs for a worse and for a
    better model, with ground truth (`labelled`) and without.
    """

    score: str
    share: str
    unit: str
    effect: str
    labelled: tuple[str, str]
    metamorphic: tuple[str, str]

    def verbs(self, relation: Relation) -> tuple[str, str]:
        """The verbs for a worse and for a better model."""
        return self.labelled if relation == "labelled" else self.metamorphic


SCORE_WORDS: Mapping[Metric, ScoreWords] = {
    "accuracy": ScoreWords(
        "accuracy", "right", "points", "Δacc",
        ("is not recognised", "is recognised better"), ("is not recognised again", "is kept more often"),
    ),
    "iou": ScoreWords(
        "IoU", "IoU", "points of IoU", "ΔIoU",
        ("is segmented worse", "is segmented better"), ("is lost", "is kept more often"),
    ),
    "recall": ScoreWords(
        "recall", "found", "points of recall", "Δrecall",
        ("is missed more often", "is found more often"), ("is not found again", "is found again more often"),
    ),
    "right answers": ScoreWords(
        "share of right answers", "right", "points", "Δright",
        ("is answered worse", "is answered better"), ("is answered otherwise", "is answered the same more often"),
    ),
}  # fmt: skip


def counts_pairs(results: JobResults) -> bool:
    """Whether a pair of images counts for a model under test, so that there are effects to speak of."""
    return any(result.counterfactuals for result in results.results)


def usage_in_words(usage: TokenUsage | None) -> str:
    """ "1,234 tokens of questions and 56 of answers, which cost 0.0123"; cost is in the currency of the profile."""
    if usage is None or not usage.questions:
        return "tokens unknown"
    cost = "" if usage.cost is None else f", which cost {usage.cost:.4g}"
    return f"{usage.prompt:,} tokens of questions and {usage.completion:,} of answers{cost}"


def asked_sentences(results: JobResults) -> list[str]:
    """For each model that is asked a question: "`assistant` was asked 182 questions: 1,234 tokens of …"."""
    return list(
        dict.fromkeys(
            f"`{of.model}` was asked {of.usage.questions:,} questions: {usage_in_words(of.usage)}."
            if of.usage.questions
            else f"The server of `{of.model}` does not count the tokens of its questions."
            for of in results.results
            if of.usage.questions or (of.originals and of.originals.blind)
        )
    )


def nothing_accepted(results: JobResults, method: str) -> str:
    """A sentence on a method none of whose edits counts, or that proposed none; empty if some do."""
    funnel = next((funnel for funnel in results.funnels if funnel.method == method), None)
    if funnel is None:
        return ""
    if funnel.accepted.count:
        if funnel.counted is None or funnel.counted.count or not funnel.lost_to_arm:
            return ""
        arm = max(funnel.lost_to_arm, key=lambda refusal: refusal.count)
        return (
            f"None of the {funnel.accepted.count} accepted edits counts, since the pictures without the change that "
            f"they are compared with are refused, most often ({arm.count}) for: {arm.check}."
        )
    if not funnel.proposed:
        return _nothing_rendered(results) or "No edit was proposed for these images."
    refusals = [*funnel.refused_by_text, *funnel.refused_by_image]
    commonest = max(refusals, key=lambda refusal: refusal.count, default=None)
    reason = f": {funnel.refusal.removesuffix('.')}" if funnel.refusal else ""
    if commonest and commonest.count == funnel.proposed:
        edits = "The one proposed edit was" if funnel.proposed == 1 else f"All {funnel.proposed} proposed edits were"
        return f"{edits} refused for one reason, {commonest.check}{reason}."
    most = f"; most often ({commonest.count}) for: {commonest.check}" if commonest else ""
    return f"None of {funnel.proposed} proposed edits was accepted{most}."


def _nothing_rendered(results: JobResults) -> str:
    """A sentence on a job that was refused before rendering; it names models that were added later, and are right."""
    refused = {of.model for of in results.results if of.originals and of.originals.standing == "unsound"}
    if not refused:
        return ""
    added = ", ".join(dict.fromkeys(f"`{of.model}`" for of in results.results if of.model not in refused))
    again = f" Submit the images again to test {added}." if added else ""
    return f"Nothing was rendered, because no model under test was right on the originals.{again}"


def nothing_compared(results: JobResults) -> str:
    """Why no edit of a job was accepted, as its first sentence; empty if one was, or no image is done."""
    if results.sources == results.sources_failed + results.sources_cancelled:
        return ""
    reasons = [nothing_accepted(results, funnel.method) for funnel in results.funnels]
    return f"Nothing was compared. {' '.join(dict.fromkeys(reasons))}" if reasons and all(reasons) else ""


def class_in_words(cell: Cell, mark: str = "", metric: Metric = "accuracy") -> str:
    """The class of a cell between marks such as "`"; words where it stands for all classes."""
    whole = "an object of any class" if metric == "recall" else "the whole image"
    return {"": "all classes", ALL_CLASSES: whole}.get(cell.label, f"{mark}{cell.label}{mark}")


def factor_in_words(factor: str, value: str) -> str:
    """The name of a factor; of the weather's values, times of day are a factor of their own: "time of day"."""
    return "time of day" if factor == "weather" and value.lower() in TIMES_OF_DAY else factor


def change_in_words(cell: Cell) -> str:
    """The change of a cell: "with weather changed to fog", "at night", "with the image changed to fog 5"."""
    factor = factor_in_words(cell.factor, cell.value)
    if factor == "time of day" and cell.direction == "to":
        return TIMES_OF_DAY[cell.value.lower()]
    changed = "the image" if cell.factor == "other" else factor
    return f"with {changed} changed {cell.direction} {cell.value}"


def open_effect_sentence(effect: CellEffect, metric: Metric = "accuracy") -> str:
    """A drop that is no finding: "`bus` at night: −100 points on 8 images; about 4 more …".

    That of a tested cell: "…: −50 points on 16 images, 95 % interval −78 to −12, not significant; about 6 more …", or
    of a suspected weakness "…, not surely beyond 5 points; about …".
    """
    unit = SCORE_WORDS[metric].unit
    change = f"{class_in_words(effect.cell, '`', metric)} {change_in_words(effect.cell)}"
    sentence = f"{change}: {points(effect.delta_accuracy)} {unit} on {effect.sources} {_images(effect.sources)}"
    if effect.interval is not None:
        sentence += f", 95 % interval {interval(effect.interval)}"
        suspected = effect.standing == "suspected weakness"
        sentence += f", not surely beyond {round(100 * BEYOND)} points" if suspected else ", not significant"
    more = more_images(effect)
    return f"{sentence}; {more} would settle an effect of this size" if more else sentence


def more_images(effect: CellEffect) -> str:
    """ "about 4 more images of `bus` that get this change", to settle an effect; "" if the number is unknown."""
    missing = effect.images_missing
    if missing is None:
        return ""
    unit = _images(missing, "group" if effect.groups else "image")
    of_class = f" of `{effect.cell.label}`" if effect.cell.label not in ("", ALL_CLASSES) else ""
    return f"about {missing:,} more {unit}{of_class} that {'gets' if missing == 1 else 'get'} this change"


def _images(count: int, word: str = "image") -> str:
    return word if count == 1 else f"{word}s"


def points(share: float) -> str:
    """A difference in percentage points with its sign: −42, +3, 0."""
    rounded = round(100 * share)
    return f"{'−' if rounded < 0 else '+' if rounded > 0 else ''}{abs(rounded)}"


def percent(share: float | None) -> str:
    """0.983 → "98 %" (no break before the sign); next to 0 and 100 % with a decimal; "–" for None."""
    if share is None:
        return "–"
    digits = 1 if 0 < share < 0.0995 or 0.9905 < share < 1 else 0
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def tenths(share: float | None) -> str:
    """0.983 → "98.3%", for columns of tables; "–" for None."""
    return "–" if share is None else f"{share:.1%}"


def how_sure(effect: CellEffect, unit: str) -> str:
    """How sure a finding is: "At least 45 points are lost, 95 % sure"; "" for other cells."""
    limits = effect.selected_interval
    if limits is None:
        return "Something is lost, 95 % sure; how much is open" if effect.standing == "suspected weakness" else ""
    lost = effect.standing == "weakness"
    least = math.floor(100 * (-limits.high if lost else limits.low) + 1e-9)
    return f"At least {least} {unit} are {'lost' if lost else 'gained'}, 95 % sure"


def interval(value: Interval | None) -> str:
    """ "−98 to −55", or "–" for None."""
    return "–" if value is None else f"{points(value.low)} to {points(value.high)}"


def limits(rate: Rate) -> str:
    """The interval of a rate, also where it has one side only: "80–98 %", "none; at most 14 %"."""
    if rate.n == 0:
        return "no data"
    if rate.sources == 1:
        return "one image, too few for an interval"
    if rate.count == 0:
        return f"none; at most {math.ceil(100 * rate.high)} %"
    if rate.count == rate.n:
        return f"all; at least {math.floor(100 * rate.low)} %"
    return f"{round(100 * rate.low)}–{round(100 * rate.high)} %"


def p_value(value: float | None) -> str:
    """0.0312 → "0.031"; tiny ones as "< 0.001"; "–" for None."""
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def review_sentence(reviews: MethodReviews) -> str:
    """What the reviews of one method show, for example how many of its accepted images are valid."""
    n = reviews.accepted + reviews.rejected
    if reviews.valid is None:
        advice = f"Review {reviews.more} more randomly sampled accepted images to calibrate the checks"
        return f"reviews of `{reviews.method}`, n = {n}: uncalibrated. {advice}"
    valid = f"{_estimate(reviews.valid)} of the accepted images are valid"
    clauses = [f"calibration of `{reviews.method}`: reviews, n = {n}: {valid}"]
    clauses += [
        f"{_estimate(flipped.valid)} of the {flipped.flipped} that flipped {flipped.model}"
        for flipped in reviews.flipped
        if flipped.valid
    ]
    if reviews.accepted_if_valid and reviews.accepted_if_invalid:
        passed, wrong = _estimate(reviews.accepted_if_valid), _estimate(reviews.accepted_if_invalid)
        clauses.append(f"the checks accept {passed} of valid and {wrong} of invalid images")
    elif reviews.more_rejected:
        more = f"{reviews.more_rejected} more randomly sampled rejected images"
        clauses.append(f"review {more} to measure the checks' errors")
    return "; ".join(clauses)


def judge_sentence(judge: JobJudge) -> str:
    """What a vision-language judge was asked, and whether its answers count."""
    asked = f"The vision-language judge was asked {judge.questions:,} questions about {judge.edits:,} edits"
    if missing := judge.refused + judge.unreadable:
        asked += f"; {missing:,} have no answer ({judge.refused:,} refused, {judge.unreadable:,} unreadable)"
    if tokens := judge.prompt_tokens + judge.completion_tokens:
        asked += f"; {tokens:,} tokens"
    if not judge.audited:
        return f"{asked}. It is not audited, so its answers enter no figure: run `contrafact audit-judge`."
    others = [f"{name} ({nature})" for name, nature in judge.natures.items() if name not in judge.counting]
    counting = ", ".join(judge.counting) or "nothing"
    left = f" Its answers to {', '.join(others)} do not count." if others else ""
    return (
        f"{asked}. Its audit of {judge.audited} ({judge.audit}) found it sound at {counting}, which enters effects of "
        f"methods with enough reviews.{left}"
    )


def checks_off_lines(checks_off: Mapping[str, Sequence[str]], funnels: Sequence[Funnel] = ()) -> list[str]:
    """A line for each method with checks that are off: "dillema: label, fit (weather) refuse nothing, because ..."."""
    passed = {funnel.method: funnel.rendered for funnel in funnels if not funnel.refused_by_image}
    return [
        f"{method}: {', '.join(checks)} refuse{'' if len(checks) > 1 else 's'} nothing, because the job has no "
        "threshold that an image can miss; `contrafact calibrate` fits one"
        + (f". No check refused any of its {passed[method]:,} images" if passed.get(method) else "")
        for method, checks in checks_off.items()
    ]


def objects_lines(funnels: Sequence[Funnel]) -> list[str]:
    """A line for each method whose images have objects that are left out, or were not checked."""
    lines = []
    for funnel in funnels:
        if (objects := funnel.objects) and objects.lost:
            lines.append(
                f"{funnel.method}: {objects.lost:,} of the {objects.checked:,} objects that a segmenter sees in the "
                "source images are not there any more in the rendered ones; they count nowhere in their pairs."
            )
        if objects and objects.unchecked:
            lines.append(
                f"{funnel.method}: {objects.unchecked:,} of {objects.checked + objects.unchecked:,} objects were not "
                "checked, because no segmenter sees them in the source image or knows their class; a model that misses "
                "them may be right."
            )
    return lines


def _estimate(share: Estimate) -> str:
    return f"{round(100 * share.value)} % ({round(100 * share.low)}–{round(100 * share.high)} %)"
