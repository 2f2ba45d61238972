"""Hand labels of caption edits, and studies by factor."""

from __future__ import annotations

import csv
import io
from contextlib import closing
from pathlib import Path

from sqlalchemy import select
from typer.testing import CliRunner

from contrafact.caption_labels import by_type, read_labels
from contrafact.cli import app
from contrafact.client import Client
from gateway.database.tables import Counterfactual
from tests.support.gateway_under_test import Gateway
from tests.support.study_raters import invite, make_study, rate_all


def test_hand_labels_of_caption_edits_give_success_and_precision_and_recall_of_the_filter(
    small: Gateway, tmp_path: Path
) -> None:
    with small.context.sessions.begin() as session:
        edit = select(Counterfactual).where(Counterfactual.arm == "edit", Counterfactual.accepted)
        for stored in session.scalars(edit.order_by(Counterfactual.id).limit(2)):
            stored.accepted, stored.image_digest, stored.check = False, None, "class words"
            refused = stored.id
    command, file = ["study", "captions", "drawn", "--url", str(small.client.base_url)], tmp_path / "captions.csv"
    assert CliRunner().invoke(app, [*command, "--out", str(file)]).exit_code == 0
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert len(rows) > 10
    assert "class words" not in file.read_text(), "labels are blind"
    unlabelled = CliRunner().invoke(app, [*command, "--labels", str(file)])
    assert (unlabelled.exit_code, "fill in" in unlabelled.output) == (3, True)
    accepted = next(row["edit"] for row in rows if row["edit"] != refused)
    for row in rows:
        row["success"], row["filter"] = "yes", "yes" if row["edit"] in (refused, accepted) else "no"
    rows[0]["success"] = "no"
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    file.write_text(text.getvalue())
    with closing(Client(str(small.client.base_url))) as client:
        rates = by_type(read_labels(file.read_text(), client.counterfactuals("drawn", {})))["overall"]
    counts = {name: (rate.count, rate.n) for name, rate in rates.items()}
    assert counts["edit success"] == (len(rows) - 1, len(rows))
    assert counts["filter recall"][1] == 2
    assert counts["filter precision"][0] == counts["filter recall"][0] == 2 - counts["false negatives"][0]
    printed = CliRunner().invoke(app, [*command, "--labels", str(file)])
    assert (printed.exit_code, "filter recall" in printed.output) == (0, True)


def test_a_study_by_factors_takes_as_many_edits_of_each_and_gives_figures_by_factor(small: Gateway) -> None:
    study = make_study(small, {"questions": "lance", "per_factor": 3, "raters_per_item": 1, "controls": 2})
    (invitation,) = invite(small, study["id"])
    rate_all(small, invitation["link"], study)
    figures = small.client.get(f"/studies/{study['id']}/results").json()["figures"]
    realism = {row.get("factor", ""): row["items"] for row in figures if row["question"] == "realism"}
    factors = {name for name in realism if name}
    assert len(factors) > 1
    assert realism == {"": 3 * len(factors), **dict.fromkeys(factors, 3)}
    assert realism[""] == study["items"]
