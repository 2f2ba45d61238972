"""Two releases compared by their runs of a suite: effects in cells, and the gate's figures on the page."""

from __future__ import annotations

import html
import re

from shared.schemas.comparisons import JobComparison
from tests.support.gateway_under_test import Gateway


def test_runs_of_a_suite_are_paired_by_counterfactual(gateway: Gateway, runs: dict[str, str]) -> None:
    reply = gateway.client.get(f"/jobs/{runs['m2']}/comparison", params={"other_job": runs["m1"]})
    assert reply.status_code == 200, reply.text
    comparison = JobComparison.model_validate_json(reply.content)
    assert (comparison.pairing, comparison.this.model, comparison.other.model) == ("edit", "m2", "m1")
    by_cell = {row.cell.label if row.cell else "": row for row in comparison.cells}
    assert (by_cell["bus"].judgement, by_cell["car"].judgement) == ("worse", "no difference found")
    assert by_cell["bus"].difference < -0.6
    assert comparison.disagreeing == 28, "seven buses of ten, of 40"
    assert {view.id for row in comparison.disagreements for view in row.counterfactuals}.isdisjoint(
        view.id for row in comparison.disagreements for view in row.other_counterfactuals
    )


def test_the_page_of_two_runs_has_the_figures_of_the_gate(gateway: Gateway, runs: dict[str, str]) -> None:
    page = gateway.client.get(f"/jobs/{runs['m2']}/compare", params={"other_job": runs["m1"]})
    assert page.status_code == 200, page.text
    text = html.unescape(page.text)
    assert 'id="releases"' in text
    assert f'<option value="{runs["m1"]}" selected>m1 1</option>' in text
    results = gateway.client.get(f"/suites/street/runs/{runs['m2']}/results", params={"baseline": runs["m1"]}).json()
    assert text.count("<td>drop</td>") == sum(row["judgement"] == "drop" for row in results["cells"]) > 0


def test_the_first_page_leads_to_the_releases_and_to_their_comparison(gateway: Gateway, runs: dict[str, str]) -> None:
    reply = gateway.client.post("/suites", json={"job": "made", "name": "untested"})
    assert reply.status_code == 201, reply.text
    rows = html.unescape(gateway.client.get("/").text).partition('id="suites"')[2].split("<tr>")
    untested, street = rows[2], rows[3]
    assert "none was tested" in untested
    assert "street" in street
    for model, run in runs.items():
        assert f'<a href="/jobs/{run}/view">{model} 1</a>' in street
        assert gateway.client.get(f"/jobs/{run}/view").status_code == 200
    link = re.search(r'href="([^"]+)">the newest two<', street)
    assert link
    assert 'id="releases"' in gateway.client.get(link[1]).text
    assert gateway.client.delete("/suites/untested").status_code == 204
