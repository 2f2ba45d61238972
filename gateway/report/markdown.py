"""The report as GitHub-flavoured Markdown, for a pull request: verdict and findings first, then the tables.

It has no pictures, because a reader there has no access to the gateway. Long tables end with a count of the rest, since
GitHub takes 65,536 characters in a comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.report.advice import next_steps, tested_sentence
from gateway.report.words import bounds, cell_name, format_signed, limit, sentence_case
from shared.schemas.effects import CellEffect, Rate
from shared.schemas.metrics import SegmentationScores
from shared.schemas.results import Funnel, JobResults, ModelResults
from shared.words.markdown import code, plain, sentence, table
from shared.words.verdicts import any_testable, model_hints, not_testable_sentences, verdict_of, verdict_sentence
from shared.words.wording import (
    NO_FINDING,
    NO_PAIR_COUNTS,
    SCORE_WORDS,
    asked_sentences,
    checks_off_lines,
    counts_pairs,
    interval,
    judge_sentence,
    limits,
    nothing_accepted,
    objects_lines,
    p_value,
    percent,
    review_sentence,
)

MAX_FINDINGS = 50
MAX_FINDINGS_OF_MODEL = 12  # under one method
MAX_ROWS = 40  # of a table of effects
MAX_TABLES = 6  # of effects


def report_markdown(results: JobResults, test_set: Sequence[str] = ()) -> str:
    """The figures of a job as Markdown. `test_set`: as on the page."""
    sections = [_head, _findings, _steps, _effects, _accuracy, _funnels]
    lines = [line for section in sections for line in section(results)]
    return "\n".join([*lines, *_test_set(test_set), *_provenance(results)]) + "\n"


def _test_set(lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<details><summary>Test set: {plain(lines[0])}</summary>\n"
        yield from (f"* {sentence(line)}" for line in lines[1:])
        yield "\n</details>\n"


def _head(results: JobResults) -> Iterator[str]:
    yield f"# {plain(results.made.task_description)}\n"
    yield from (f"**{sentence(line)}**\n" for line in not_testable_sentences(results))
    yield f"{plain(tested_sentence(results))}\n"
    if results.outside_domain:
        yield f"**Do not rely on these results:** {sentence(results.outside_domain)}\n"
    if results.sources_failed:
        reasons = "; ".join(f"{reason.count} for: {plain(reason.reason)}" for reason in results.failure_reasons)
        yield f"**{results.sources_failed} of {results.sources} source images failed** ({reasons}).\n"
    if results.sources_cancelled:
        yield f"**Cancelled:** {results.sources_cancelled} of {results.sources} source images were not finished.\n"
    yield from table(["model", "method", "verdict"], (_verdict(results, result) for result in results.results))
    yield ""
    yield from (f"* {sentence(hint)}" for hint in [*model_hints(results), *asked_sentences(results)])
    yield from (
        f"* Checks that are off: {sentence(line)}" for line in checks_off_lines(results.checks_off, results.funnels)
    )
    yield from (
        f"* {plain(funnel.method)}: the label was not checked in {funnel.label_unchecked} of {funnel.rendered} "
        "rendered images, because the scorer ranks it last of all classes in their source images."
        for funnel in results.funnels
        if funnel.label_unchecked
    )
    yield from (
        f"* {plain(funnel.method)}: the editor zoomed or shifted {funnel.moved_back} of {funnel.rendered} rendered "
        "images; they were moved back."
        for funnel in results.funnels
        if funnel.moved_back
    )
    yield from (f"* {sentence(line)}" for line in objects_lines(results.funnels))
    yield from (f"* {sentence(review_sentence(reviews))}" for reviews in results.reviews)
    if results.judge:
        yield f"* {sentence(judge_sentence(results.judge))}"
    if results.provisional and counts_pairs(results):
        yield "* **Provisional:** the error rates of the automatic checks are unknown for these images.\n"


def _verdict(results: JobResults, result: ModelResults) -> list[str]:
    verdict = verdict_of(results, result)
    mark = "❌" if verdict.kind == "weakness" else "✅" if verdict.passes else "❔"
    text = f"{mark} {sentence(verdict_sentence(verdict, result.metric))}"
    return [plain(result.model), plain(result.method), text]


def _findings(results: JobResults) -> Iterator[str]:
    if not results.results:
        return
    yield "## Findings\n"
    pairs = [(result, effect) for result in results.results for effect in result.findings[:MAX_FINDINGS_OF_MODEL]]
    for result, effect in pairs[:MAX_FINDINGS]:
        source = f"{result.model}, {result.method}, q {p_value(effect.q_value)}"
        details = f" {sentence(sentence_case(effect.details))}." if effect.details else ""
        yield f"1. {sentence(effect.sentence)} ({plain(source)}){details}{_note(effect)}"
    more_findings = sum(len(result.findings) for result in results.results) - len(pairs[:MAX_FINDINGS])
    if more_findings:
        yield f"\n{more_findings} more findings are in the report."
    if any_testable(results) and not any(result.findings for result in results.results):
        reasons = dict.fromkeys(nothing_accepted(results, result.method) for result in results.results)
        yield from (plain(reason) for reason in reasons if reason)
        yield NO_FINDING if counts_pairs(results) else NO_PAIR_COUNTS
    yield ""


def _note(effect: CellEffect) -> str:
    if effect.note is None:
        return ""
    status = f" **{effect.note.status}**" if effect.note.status else ""
    return f"{status} {plain(effect.note.note)}".rstrip()


def _steps(results: JobResults) -> Iterator[str]:
    if steps := next_steps(results):
        yield "## What to do next\n"
        yield from (f"1. {sentence(step)}" for step in steps)
        yield ""


def _effects(results: JobResults) -> Iterator[str]:
    if results.results:
        yield "## Effects in cells\n"
    for result in results.results[:MAX_TABLES]:
        effects = [effect for effect in result.cells if effect.standing != "too few images"]
        too_few = len(result.cells) - len(effects)
        yield f"### {plain(result.model)}, {plain(result.method)}\n"
        unit = SCORE_WORDS[result.metric].effect
        counts = f"{result.counterfactuals} counterfactuals of {result.sources} images"
        yield f"{counts} against their {result.reference} arms.\n"
        head = ["cell", "", unit, "95 % interval", "adjusted", "with refused", "q", "images", "limit"]
        yield from table(head, map(_effect, effects[:MAX_ROWS]), numbers=7)
        notes = [f"{len(effects) - MAX_ROWS} more cells are in the report."] if len(effects) > MAX_ROWS else []
        notes += [f"{too_few} cells have too few images to test."] if too_few else []
        yield f"\n{' '.join(notes)}\n" if notes else ""
    if len(results.results) > MAX_TABLES:
        yield f"{len(results.results) - MAX_TABLES} more tables are in the report.\n"


def _effect(effect: CellEffect) -> list[str]:
    named = {"weakness": "**weakness**", "suspected weakness": "suspected", "improvement": "improvement"}
    standing = named.get(effect.standing, "")
    figures = [
        format_signed(effect.delta_accuracy),
        interval(effect.interval),
        interval(effect.selected_interval),
        bounds(effect),
        p_value(effect.q_value),
        str(effect.sources),
        limit(effect),
    ]
    return [plain(cell_name(effect.cell)), standing, *map(plain, figures)]


def _accuracy(results: JobResults) -> Iterator[str]:
    rows = [_accuracy_row(result) for result in results.results]
    if any(rows):
        head = ["model", "method", "originals", "null arms", "counterfactuals", "changed predictions"]
        yield "## Accuracy\n"
        yield from table(head, filter(None, rows))
        yield ""


def _accuracy_row(result: ModelResults) -> list[str]:
    """The figures of a model. Without ground truth there is no accuracy, only changed predictions."""
    names = [plain(result.model), plain(result.method)]
    if result.segmentation is not None:
        arms = (result.segmentation.originals, result.segmentation.nulls, result.segmentation.counterfactuals)
        return [*names, *map(_overlap, arms), f"lost classes: {_rate(result.segmentation.lost)}"]
    if (answers := result.answers) is not None:
        arms_of_all = (answers.originals[0].right, answers.nulls[0].right, answers.counterfactuals[0].right)
        return [*names, *map(_rate, arms_of_all), f"right answers lost: {_rate(answers.lost)}"]
    if result.metrics is None or not result.metrics.accuracy:
        return []
    if result.relation == "metamorphic":
        return [*names, "no ground truth", "–", "–", _rate(result.metrics.flips)]
    accuracy = result.metrics.accuracy[0]
    rates = (accuracy.originals, accuracy.nulls, accuracy.counterfactuals, result.metrics.flips)
    return [*names, *map(_rate, rates)]


def _rate(rate: Rate) -> str:
    return plain(f"{percent(rate.value)} (n = {rate.n}; {limits(rate)})") if rate.value is not None else "none"


def _overlap(scores: SegmentationScores) -> str:
    return f"mIoU {percent(scores.mean_iou)} (n = {scores.images})"


def _funnels(results: JobResults) -> Iterator[str]:
    yield "## From proposal to counterfactual\n"
    head = ["method", "most frequent refusal", "proposed", "rendered", "accepted", "counted"]
    yield from table(head, map(_funnel, results.funnels), numbers=4)
    yield ""


def _funnel(funnel: Funnel) -> list[str]:
    refusals = [*funnel.refused_by_text, *funnel.refused_by_image]
    commonest = max(refusals, key=lambda refusal: refusal.count, default=None)
    counted = funnel.accepted if funnel.counted is None else funnel.counted
    counts = (funnel.proposed, funnel.rendered, funnel.accepted.count, counted.count)
    return [
        plain(funnel.method),
        plain(f"{commonest.check}: {commonest.count}") if commonest else "",
        *map(str, counts),
    ]


def _provenance(results: JobResults) -> Iterator[str]:
    provenance = results.made
    yield "<details><summary>Provenance</summary>\n"
    yield f"* job {code(provenance.job)}, profile {plain(provenance.profile)}, seed {provenance.seed}"
    for name, service in provenance.services.items():
        weights = "".join(f"; {plain(part.role)} {code(part.id)} {code(part.revision)}" for part in service.weights)
        yield f"* {plain(name)} {code(service.revision)}{weights}"
    yield f"* {plain(', '.join(f'{name} {number}' for name, number in provenance.versions.items()))}"
    yield "\n</details>"
