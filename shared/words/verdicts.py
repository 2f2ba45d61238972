"""The verdict on a model under test under a method, the same on pages, in reports, as Markdown and on terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from shared.schemas.effects import BEYOND, LEAST_SOURCES, SMALL_LOSS, CellEffect, Interval, Metric
from shared.schemas.results import JobResults, ModelResults
from shared.words.wording import (
    SCORE_WORDS,
    change_in_words,
    class_in_words,
    nothing_accepted,
    open_effect_sentence,
)

SELDOM = 0.05  # probability below which chance does not explain a drop
UNREVIEWED = "Provisional: review images that were not lost, too; an edit that does not show hides a loss."
VerdictKind = Literal["weakness", "not settled", "bounded", "nothing compared", "too few images", "not testable"]


@dataclass(frozen=True, slots=True)
class ModelVerdict:
    """What the cells of one model under test under one method show together.

    `weakness`: a cell is a weakness. `not settled`: none is, and a cell is a suspected one, or has a drop that
    `is_suspected`. `bounded`: cells were tested, and neither holds. `nothing compared`: no edit was accepted. `too few
    images`: no cell could be tested, and none has a suspected drop. `not testable`: the model is not right on the
    originals, or nothing else was found and it is not shown to be, or it finds nothing there; `originals` says why.

    `weaknesses`: the strongest first. `tested` and `untested` are all cells. `unsettled`: cells without a finding whose
    drop `is_suspected`; the first lost the most images, so that one lost image of one does not come before 9 of 10.

    `limit`: what no tested cell loses more than, 0 … 1: the largest of their one-sided 95 % limits. No correction for
    many cells is needed: it is too low only if the limit of the one cell that loses most is. Where reviews show how
    many images are valid, it is divided by the lower end of that share: an edit that does not show loses nothing. Both
    are then limits at 97.5 %, so that their quotient is one at 95 %.
    `provisional`: the method's random sample is not reviewed, or holds no image that the model kept.
    `never`: the model hardly ever recognises a class on the originals, so that no change could cost it much there.
    `beside`: sentences on what no cell shows: values under which it hallucinates more, and missing answers.
    """

    kind: VerdictKind
    weaknesses: list[CellEffect]
    tested: list[CellEffect]
    untested: list[CellEffect]
    unsettled: list[CellEffect]
    originals: str = ""
    limit: float = 1.0
    provisional: bool = True
    never: bool = False
    beside: tuple[str, ...] = ()

    @property
    def shown(self) -> list[CellEffect]:
        """The cells that pages show first: the three strongest weaknesses, or the unsettled drop that lost most."""
        return self.weaknesses[:3] if self.kind == "weakness" else self.unsettled[: self.kind == "not settled"]

    @property
    def passes(self) -> bool:
        """Whether more than a small loss is ruled out in all tested cells, on reviewed images."""
        return (
            self.kind == "bounded" and self.limit <= SMALL_LOSS and not (self.provisional or self.never or self.beside)
        )


def is_suspected(difference: float, interval: Interval | None, n: int, margin: float = BEYOND) -> bool:
    """Whether a difference that no test established may well be real: it must not read as "nothing found".

    It is larger than the margin (0 … 1), in either direction, and the 95 % interval excludes zero. In a tested cell,
    only the correction for many cells, or too few images, then stand in its way. Without an interval, because there are
    too few images (or groups, `n` of either): so many are lost, less those gained, that if only the margin were lost,
    fewer than 5 % of such cells would lose as many. For 5 points those are 2 of 2 to 7, and 3 of 8 to 11.
    """
    if abs(difference) <= margin:
        return False
    if interval is not None:
        return interval.low > 0 or interval.high < 0
    lost = math.floor(abs(difference) * n + 1e-9)
    return sum(math.comb(n, k) * margin**k * (1 - margin) ** (n - k) for k in range(lost, n + 1)) < SELDOM


def suspected_drops(of: ModelResults) -> list[CellEffect]:
    """The suspected weaknesses, and the other cells without a finding whose drop `is_suspected`."""
    return [effect for effect in of.cells if effect.standing == "suspected weakness" or _is_open(effect)]


def _is_open(effect: CellEffect) -> bool:
    if effect.standing not in ("nothing found", "too few images") or effect.delta_accuracy >= 0:
        return False
    return is_suspected(effect.delta_accuracy, effect.interval, effect.groups or effect.sources)


def verdict_of(results: JobResults, of: ModelResults) -> ModelVerdict:
    """The verdict on one of a job's results."""
    weaknesses = [effect for effect in of.cells if effect.standing == "weakness" and effect.part_of is None]
    tested = [effect for effect in of.cells if effect.standing != "too few images"]
    untested = [effect for effect in of.cells if effect.standing == "too few images"]
    unsettled = sorted(suspected_drops(of), key=lost_images, reverse=True)
    kind: VerdictKind = "too few images"
    if weaknesses:
        kind = "weakness"
    elif unsettled:
        kind = "not settled"
    elif tested:
        kind = "bounded"
    elif nothing_accepted(results, of.method):
        kind = "nothing compared"
    check = of.originals
    doubtful = kind == "bounded" or (kind == "too few images" and not of.cells and check and check.only)
    if check and (check.standing == "unsound" or (doubtful and not check.lets_pass)):
        kind = "not testable"
    sentence, share = of.originals.sentence if of.originals else "", _valid_share(results, of)
    largest = max((_loss_limit(effect, beside_share=share is not None) for effect in tested), default=1.0)
    limit = min(1.0, largest / (share or 1.0))
    never = bool(check and check.never)
    hallucinations = [effect.sentence for effect in of.detection.more_hallucinations] if of.detection else []
    silence = silence_in_words(of.unanswered.get("counterfactual", 0), of.counterfactuals)
    beside = (*hallucinations, *([silence] if silence else []))
    return ModelVerdict(kind, weaknesses, tested, untested, unsettled, sentence, limit, share is None, never, beside)


def silence_in_words(unanswered: int, answered: int) -> str:
    """What to say of a model without an answer to more than 5 % of the counterfactuals, which do not count; else ""."""
    asked = unanswered + answered
    if unanswered <= BEYOND * asked:
        return ""
    return (
        f"It gave no answer to {unanswered:,} of {asked:,} counterfactuals, which do not count: a change may cost more "
        "than is ruled out."
    )


def _loss_limit(effect: CellEffect, beside_share: bool) -> float:
    """The one-sided limit of a tested cell's loss, at 95 %, or at 97.5 % beside the limit of a share of valid images.

    The end of the two-sided interval is the limit at 97.5 %. It stands in for the other in results of older versions.
    """
    if effect.loss_limit is not None and not beside_share:
        return effect.loss_limit
    return 1.0 if effect.interval is None else max(0.0, -effect.interval.low)


def _valid_share(results: JobResults, of: ModelResults) -> float | None:
    """The least share of valid images, if enough were reviewed, and some of them show what the model kept."""
    for reviews in results.reviews:
        flipped = sum(entry.reviewed for entry in reviews.flipped if entry.model == of.model)
        if reviews.method == of.method and reviews.valid is not None and reviews.accepted > flipped:
            return reviews.valid.low or None
    return None


def not_testable_sentences(results: JobResults) -> list[str]:
    """For each model without a verdict, why: "`street` has no verdict. Not testable: …"."""
    sentences = {
        of.model: f"`{of.model}` has no verdict. {verdict.originals}"
        for of in results.results
        if (verdict := verdict_of(results, of)).kind == "not testable"
    }
    return list(sentences.values())


def any_testable(results: JobResults) -> bool:
    """Whether a model may have a verdict, or no model was under test."""
    return not results.results or any(verdict_of(results, of).kind != "not testable" for of in results.results)


def model_hints(results: JobResults) -> list[str]:
    """What else is to be said of models: "`street`: Right on 64 % (…) of the originals. If …".

    First of them on their originals, then what no cell shows.
    """
    hints = {
        of.model: f"`{of.model}`: {verdict.originals}"
        for of in results.results
        if (verdict := verdict_of(results, of)).kind != "not testable" and verdict.originals
    }
    beside = [f"`{of.model}`: {line}" for of in results.results for line in verdict_of(results, of).beside]
    return [*hints.values(), *beside]


def lost_images(effect: CellEffect) -> float:
    """How many source images a drop lost, by which unsettled drops are ordered."""
    return -effect.delta_accuracy * effect.sources


def by_severity(results: JobResults, among: Sequence[ModelResults]) -> list[ModelResults]:
    """Results with a weakness, then by the images that their unsettled drop lost, then the others."""

    def rank(result: ModelResults) -> tuple[int, float]:
        verdict = verdict_of(results, result)
        if verdict.kind == "not settled":
            return 1, -lost_images(verdict.unsettled[0])
        return 0 if verdict.kind == "weakness" else 2, 0

    return sorted(among, key=rank)


def verdict_sentence(verdict: ModelVerdict, metric: Metric = "accuracy") -> str:
    """The verdict in words, classes between backticks: "1 weakness: `bus` at night is not recognised: …"."""
    if verdict.kind == "not testable":
        return verdict.originals
    if verdict.kind == "weakness":
        count, first = len(verdict.weaknesses), verdict.weaknesses[0]
        words = first.sentence or f"{class_in_words(first.cell, '`')} {change_in_words(first.cell)}."
        suspected = sum(effect.standing == "suspected weakness" for effect in verdict.tested)
        more = f" {suspected} more suspected." if suspected else ""
        return f"{f'{count} weaknesses, first' if count > 1 else '1 weakness'}: {words}{more}"
    if verdict.kind == "bounded":
        return f"{ruled_out(verdict.limit, metric)}; {ruled_out_terms(verdict)}"
    untested = "Nothing was compared." if verdict.kind == "nothing compared" else _too_few_sentence(verdict)
    return not_settled_sentence(verdict, metric) or untested


def _too_few_sentence(verdict: ModelVerdict) -> str:
    """ "Nothing was tested: too few images. A cell needs 12 with an accepted edit; `bus` … has the most, 7."."""
    sentence = "Nothing was tested: too few images."
    if not verdict.untested:
        return sentence
    largest = max(verdict.untested, key=lambda effect: effect.groups or effect.sources)
    units, count = ("groups", largest.groups) if largest.groups else ("images", largest.sources)
    cell = f"{class_in_words(largest.cell, '`')} {change_in_words(largest.cell)}"
    return f"{sentence} A cell needs {LEAST_SOURCES} {units} with an accepted edit; {cell} has the most, {count}."


def ruled_out(limit: float, metric: Metric = "accuracy") -> str:
    """ "No tested change costs more than 27 points (95 % limit)"; `limit` in 0 … 1."""
    return "No loss is ruled out" if limit >= 1 else f"No tested change costs more than {limit_in_words(limit, metric)}"


def limit_in_words(limit: float, metric: Metric) -> str:
    """ "27 points (95 % limit)", rounded up; `limit` in 0 … 1."""
    return f"{math.ceil(100 * limit - 1e-9)} {SCORE_WORDS[metric].unit} (95 % limit)"


def counts_tested(tested: int, untested: int) -> str:
    """ "32 of 40 were not tested"; "8 of 8 were tested"."""
    count = untested or tested
    return f"{count} of {tested + untested} {'was' if count == 1 else 'were'}{' not' if untested else ''} tested"


def ruled_out_terms(verdict: ModelVerdict) -> str:
    """ "32 of 40 were not tested. Provisional: …"."""
    tested = counts_tested(len(verdict.tested), len(verdict.untested))
    return f"{tested}.{f' {UNREVIEWED}' if verdict.provisional else ''}"


def not_settled_sentence(verdict: ModelVerdict, metric: Metric = "accuracy") -> str:
    """The first unsettled drop, what would settle it, and how many cells are open; "" for other verdicts."""
    if verdict.kind != "not settled":
        return ""
    return f"Not settled: {open_effect_sentence(verdict.unsettled[0], metric)}. {open_cells_sentence(verdict)}"


def open_cells_sentence(verdict: ModelVerdict) -> str:
    """ "2 of 10 tested cells are suspected weaknesses. 1 of 10 tested cells dropped, not significant. 3 of 13 cells …".

    Each sentence is left out if it is of no cell. The last: "3 of 13 cells have too few images to test, 1 of them …".
    """
    suspected = sum(effect.standing == "suspected weakness" for effect in verdict.unsettled)
    dropped = sum(effect.standing == "nothing found" for effect in verdict.unsettled)
    of_tested, sentences = f"of {_cells(len(verdict.tested), 'tested ')}", []
    if suspected:
        are = "is a suspected weakness" if suspected == 1 else "are suspected weaknesses"
        sentences.append(f"{suspected} {of_tested} {are}.")
    if dropped:
        sentences.append(f"{dropped} {of_tested} dropped, not significant.")
    if verdict.untested:
        have = "has" if len(verdict.untested) == 1 else "have"
        drops = len(verdict.unsettled) - suspected - dropped
        sentences.append(
            f"{len(verdict.untested)} of {_cells(len(verdict.tested) + len(verdict.untested))} {have} too few images "
            f"to test, {drops} of them with {'a drop' if drops == 1 else 'drops'} beyond 5 points."
        )
    return " ".join(sentences)


def _cells(count: int, tested: str = "") -> str:
    return f"{count} {tested}cell{'' if count == 1 else 's'}"
