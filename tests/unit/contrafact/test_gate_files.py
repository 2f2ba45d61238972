"""JUnit XML and Markdown of a gate: their shape, what each judgement becomes, and names that are no markup."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from contrafact.suite_commands import MAX_ROWS, gate_markdown, junit_document
from shared.schemas.effects import Cell, Interval, Rate
from shared.schemas.suites import CellComparison, Judgement, RunResults

JUDGEMENTS: tuple[Judgement, ...] = ("held", "undecided", "drop", "too few images")
INTERVAL = Interval(low=-0.6, high=-0.2, level=0.95, kind="betting")
# The elements of JUnit XML as Jenkins reads them: attributes that are needed, and the children in their order.
SHAPE: dict[str, tuple[set[str], str]] = {
    "testsuites": (set(), r"(testsuite )*"),
    "testsuite": ({"name", "tests", "failures", "errors"}, r"(properties )?(testcase )*(system-out )?(system-err )?"),
    "properties": (set(), r"(property )+"),
    "property": ({"name", "value"}, ""),
    "testcase": ({"name", "classname", "time"}, r"(skipped )?(error )*(failure )*(system-out )*(system-err )*"),
    "skipped": ({"message"}, ""),
    "error": ({"message", "type"}, ""),
    "failure": ({"message", "type"}, ""),
    "system-out": (set(), ""),
}


def comparison(judgement: Judgement, label: str = "bus", value: str = "night") -> CellComparison:
    interval = INTERVAL if judgement != "held" else Interval(low=-0.04, high=0.02, level=0.95, kind="betting")
    rate = Rate(value=0.5, count=10, n=20, low=0.3, high=0.7)
    return CellComparison(
        method="dillema", cell=Cell(label=label, factor="weather", value=value, direction="to"), sources=20, images=20,
        accuracy=rate, against=rate, difference=-0.4, interval=interval, selected_interval=None,
        p_value=0.01, q_value=0.02, judgement=judgement, sentence=f"`{label}` with weather changed to {value}",
    )  # fmt: skip


def results(cells: Sequence[CellComparison]) -> RunResults:
    return RunResults(
        suite="1f" * 16, run="2f" * 16, model="v2", revision="abc", baseline=None, baseline_model=None,
        baseline_revision=None, relation="labelled", max_drop=5, left_out=0, cells=list(cells),
        breaches=[cell.sentence for cell in cells if cell.judgement == "drop"],
    )  # fmt: skip


def assert_junit(element: ElementTree.Element) -> None:
    attributes, children = SHAPE[element.tag]
    assert attributes <= set(element.attrib), element.tag
    assert re.fullmatch(children, "".join(f"{child.tag} " for child in element)), element.tag
    for child in element:
        assert_junit(child)


def test_each_judgement_has_its_case() -> None:
    root = ElementTree.fromstring(junit_document(results([comparison(name) for name in JUDGEMENTS]), "night"))
    assert_junit(root)
    suite = root[0]
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["4", "1", "0", "2"]
    outcomes = [[child.tag for child in case] for case in suite.iter("testcase")]
    assert outcomes == [["system-out"], ["skipped"], ["failure"], ["skipped"]]
    assert {case.get("classname") for case in suite.iter("testcase")} == {"night.dillema"}


def test_a_gate_that_tested_nothing_is_an_error() -> None:
    nothing = results([comparison("too few images")])
    root = ElementTree.fromstring(junit_document(nothing, "night"))
    assert_junit(root)
    assert (root[0].get("errors"), root[0].get("skipped"), root[0].get("tests")) == ("1", "1", "2")
    assert "nothing was tested" in gate_markdown(nothing, "night")


def test_a_green_mark_needs_a_cell_that_held_and_a_model_that_is_right() -> None:
    undecided = comparison("undecided").model_copy(update={"difference": 0.0})
    held = results([comparison("held")])
    for gate, words in (
        (results([undecided]), "none is ruled out"),
        (held.model_copy(update={"untestable": "`v2`: Why."}), "nothing was tested"),
        (held.model_copy(update={"doubtful": "`v2`: One class."}), "in doubt"),
    ):
        page = gate_markdown(gate, "night")
        assert words in page.splitlines()[0]
        assert "✅" not in page
    assert gate_markdown(held, "night").startswith("## ✅")


def test_names_are_text_in_xml_and_markdown() -> None:
    label = 'a|b`<img src=x>\x00\x1b[31m]\ufffe & "c"\n# title'
    hostile = results([comparison("drop", label, "**night**|[x](http://a)")])
    root = ElementTree.fromstring(junit_document(hostile, "a<b>&\x0b"))
    assert_junit(root)
    assert "<img src=x>" in str(next(root.iter("testcase")).get("name"))
    page = gate_markdown(hostile, "a<b>")
    head, rules, row = page.splitlines()[-3:]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in (head, rules, row)} == {9}
    assert "# title" not in [line.strip() for line in page.splitlines()]
    assert not re.search(r"(?<!\\)<img|(?<!\\)\*\*night|(?<!\\)\[x]", re.sub(r"`[^`]*`", "", page))


def test_names_mention_nobody_and_link_nowhere() -> None:
    """A class named `@org/team` notified the team in every pull request."""
    label = "@org/team a@b.example #12 https://evil.example HTTP://a www.evil.example mailto:x"
    page = gate_markdown(results([comparison("held", label)]), label)
    outside_code = re.sub(r"`[^`]*`", "", page)
    assert outside_code.count("<span>@</span>") == 4
    assert not re.search(r"@\w|#\d|https?://|www\.|mailto:", outside_code, re.IGNORECASE)
    assert label in re.sub(r"</?span>", "", page)


def test_breaches_come_first_and_long_tables_end() -> None:
    cells = [comparison("held", f"class {n}") for n in range(2 * MAX_ROWS)] + [comparison("drop")]
    page = gate_markdown(results(cells), "night")
    assert page.splitlines()[0].startswith("## ❌")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert (len(rows), rows[2].split(" | ")[2]) == (MAX_ROWS + 2, "**drop**")
    assert f"{MAX_ROWS + 1} more cells" in page
    assert len(page) < 65_536


def test_a_drop_that_was_not_tested_is_no_green_mark() -> None:
    """A gate of a small suite began with a green mark above −40 points."""
    held, untested = comparison("held"), comparison("too few images")
    head = gate_markdown(results([held, untested]), "night").splitlines()[0]
    assert "✅" not in head
    assert "1 cell may drop more: 1 with too few images" in head
    within = untested.model_copy(update={"difference": -0.05})
    assert "✅" in gate_markdown(results([held, within]), "night").splitlines()[0]


def test_an_undecided_drop_is_no_green_mark() -> None:
    """ "No drop of more than 5 points is shown" stood above an undecided −50, −78 to −12."""
    drop = comparison("undecided")
    head = gate_markdown(results([comparison("held"), drop, comparison("too few images")]), "night").splitlines()[0]
    assert head.startswith("## ❔")
    assert "2 cells may drop more: 1 undecided, 1 with too few images" in head
    reaching_zero = drop.model_copy(update={"interval": Interval(low=-0.7, high=0.1, level=0.95, kind="betting")})
    wide = gate_markdown(results([comparison("held"), reaching_zero]), "night")
    assert wide.startswith("## ❔")
    assert "No tested cell drops more than 70 points (95 % limit); 2 of 2 were tested." in wide
    root = ElementTree.fromstring(junit_document(results([drop]), "night"))
    assert (root[0].get("failures"), root[0].get("skipped")) == ("0", "1"), "the cases are as before"
