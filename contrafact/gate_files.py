"""Files that `contrafact gate` writes for CI: JUnit XML, and Markdown for a job's summary or a pull request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from shared.markdown import plain, sentence, table
from shared.schemas.suites import CellComparison, Judgement, RunResults
from shared.verdicts import is_suspected
from shared.wording import class_in_words, interval, percent, points

REVISION_CHARACTERS = 12
MAX_ROWS = 150  # of the table: GitHub takes 65,536 characters in a comment
NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
SKIPPED: frozenset[Judgement] = frozenset({"undecided", "too few images"})
ORDER: Sequence[Judgement] = ("drop", "undecided", "held", "too few images")


def nothing_tested(results: RunResults) -> str:
    """Why nothing could be tested, and what to change."""
    if any(cell.judgement != "too few images" for cell in results.cells):
        never = (
            "neither the release nor its reference is ever right in a cell with enough source images. Check the order "
            "of the classes, the label map, and the preprocessing."
        )
        return f"nothing could be tested: {results.untestable or never}"
    left_out = f" {results.left_out} counterfactuals have no usable prediction." if results.left_out else ""
    few = f"no cell has enough source images.{left_out} Freeze a suite of more images."
    return f"nothing could be tested: {few} {results.untestable}".rstrip()


def summary(results: RunResults) -> str:
    """The compared releases, and the number of cells per judgement."""
    counts = {name: sum(cell.judgement == name for cell in results.cells) for name in ORDER}
    baseline = "its own null arms"
    if results.baseline_model is not None and results.baseline_revision is not None:
        baseline = f"{results.baseline_model} ({results.baseline_revision[:REVISION_CHARACTERS]})"
    release = f"{results.model} ({results.revision[:REVISION_CHARACTERS]})"
    return (
        f"{release} against {baseline}, drops of more than {results.max_drop:g} points: "
        f"{counts['drop']} shown, {counts['held']} ruled out, {counts['undecided']} undecided, "
        f"{counts['too few images']} with too few images"
    )


def run_sentence(results: RunResults) -> str:
    """The ids of the run and of its baseline, and the command that compares them."""
    if results.baseline is None:
        return f"Run {results.run}."
    command = f"contrafact compare {results.run} --other-job {results.baseline}"
    return f"Run {results.run}, baseline run {results.baseline}; {command} compares them."


def junit_document(results: RunResults, suite: str) -> bytes:
    """The comparison as JUnit XML (Jenkins' and pytest's shape): a test case for each cell.

    A breach is a failure with its sentence; a cell that is undecided or has too few images is skipped. If nothing was
    tested, one more case is an error. `suite`: the suite's name, which begins the class names of the cases.
    """
    document = ElementTree.Element("testsuites", name="contrafact gate")
    cases = [_case(cell, suite) for cell in results.cells]
    if results.shows_nothing:
        error = ElementTree.Element("testcase", classname=_text(suite), name="images", time="0")
        ElementTree.SubElement(error, "error", type="nothing tested", message=_text(nothing_tested(results)))
        cases.append(error)
    counts = {
        "failures": sum(cell.judgement == "drop" for cell in results.cells),
        "errors": int(results.shows_nothing),
        "skipped": sum(cell.judgement in SKIPPED for cell in results.cells),
    }
    attributes = {"tests": str(len(cases)), **{name: str(count) for name, count in counts.items()}, "time": "0"}
    element = ElementTree.SubElement(document, "testsuite", {"name": _text(suite), **attributes})
    element.append(_properties(results))
    element.extend(cases)
    ElementTree.indent(document)
    text: bytes = ElementTree.tostring(document, encoding="utf-8", xml_declaration=True)
    return text


def _properties(results: RunResults) -> ElementTree.Element:
    """What was compared."""
    values = {
        "suite": results.suite,
        "run": results.run,
        "model": results.model,
        "revision": results.revision,
        "baseline": results.baseline_model or "null arms",
        "baseline revision": results.baseline_revision or "",
        "max drop": f"{results.max_drop:g}",
    }
    properties = ElementTree.Element("properties")
    for name, value in values.items():
        ElementTree.SubElement(properties, "property", name=name, value=_text(value))
    return properties


def _case(comparison: CellComparison, suite: str) -> ElementTree.Element:
    method = comparison.method or "originals"
    case = ElementTree.Element(
        "testcase", classname=_text(f"{suite}.{method}"), name=_text(_cell_name(comparison)), time="0"
    )
    text = _text(comparison.sentence)
    if comparison.judgement == "drop":
        ElementTree.SubElement(case, "failure", type="drop", message=text).text = text
    elif comparison.judgement in SKIPPED:
        ElementTree.SubElement(case, "skipped", type=comparison.judgement, message=f"{comparison.judgement}: {text}")
    else:
        ElementTree.SubElement(case, "system-out").text = text
    return case


def _text(value: str) -> str:
    """A value without the characters that XML 1.0 forbids."""
    return NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", value)


def _cell_name(comparison: CellComparison) -> str:
    """The same in every run of a suite: "bus, weather to night"."""
    cell = comparison.cell
    if cell is None:
        return "all counterfactuals" if comparison.method else "originals"
    return f"{class_in_words(cell)}, {cell.factor} {cell.direction} {cell.value}"


def gate_markdown(results: RunResults, suite: str) -> str:
    """The verdict, the breaches in sentences, and a table of the cells: breaches first, then what is undecided."""
    lines = [f"## {_verdict(results, suite)}", "", plain(summary(results)) + ".", "", run_sentence(results), ""]
    lines += [f"* {sentence(breach)}" for breach in results.breaches]
    lines += [""] if results.breaches else []
    if results.shows_nothing:
        lines += [f"**Error:** {sentence(nothing_tested(results))}", ""]
    elif results.untestable or results.doubtful:
        lines += [sentence(f"{results.untestable} {results.doubtful}".strip()), ""]
    head = ["cell", "method", "judgement", "accuracy", "against", "difference", "95 % interval", "images"]
    if results.metric == "iou":
        head[3] = "IoU"
    cells = sorted(results.cells, key=lambda cell: ORDER.index(cell.judgement))
    lines += table(head, map(_row, cells[:MAX_ROWS]), numbers=5)
    if len(cells) > MAX_ROWS:
        lines += ["", f"{len(cells) - MAX_ROWS} more cells are in the JUnit file."]
    return "\n".join(lines) + "\n"


def _verdict(results: RunResults, suite: str) -> str:
    if results.shows_nothing:
        return f"❔ {plain(suite)}: nothing was tested"
    if not results.breaches:
        settled = f"{plain(suite)}: no drop of more than {results.max_drop:g} points is shown"
        drops = _open_drops(results)
        if drops:
            return f"❔ {settled}, but {drops}"
        if results.doubtful:
            return f"❔ {settled}, but a model is in doubt"
        held = any(cell.judgement == "held" for cell in results.cells)
        return f"✅ {settled}" if held else f"❔ {settled}, but none is ruled out in any cell"
    count = len(results.breaches)
    return f"❌ {plain(suite)}: {count} drop{'s' if count > 1 else ''} of more than {results.max_drop:g} points"


def _open_drops(results: RunResults) -> str:
    """Cells that may well drop more: "2 cells may drop more: 1 undecided, 1 with too few images"; "" without any."""
    suspected = [
        cell.judgement
        for cell in results.cells
        if cell.judgement in SKIPPED
        and cell.difference < 0
        and is_suspected(cell.difference, cell.interval, cell.sources, results.max_drop / 100)
    ]
    if not suspected:
        return ""
    counts = [(suspected.count("undecided"), "undecided"), (suspected.count("too few images"), "with too few images")]
    listed = ", ".join(f"{count} {words}" for count, words in counts if count)
    return f"{len(suspected)} cell{'' if len(suspected) == 1 else 's'} may drop more: {listed}"


def _row(cell: CellComparison) -> list[str]:
    return [
        plain(_cell_name(cell)),
        plain(cell.method),
        f"**{cell.judgement}**" if cell.judgement == "drop" else cell.judgement,
        percent(cell.accuracy.value),
        percent(cell.against.value),
        points(cell.difference),
        interval(cell.selected_interval or cell.interval),
        str(cell.sources),
    ]
