"""Jobs of balanced design: every source image gets the same values, and the report says what was spent where."""

from __future__ import annotations

import pytest

from gateway.database.tables import Job
from tests.support.work_site import Site

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
VALUES = ["weather=fog", "weather=rain", "weather=night"]  # the small services have words for the first two


def add_balanced_job(site: Site, images: int) -> None:
    parameters = {"values": [{"factor": "weather", "value": text.partition("=")[2]} for text in VALUES], "steps": 2}
    site.add_job(images=images, models=("m1",), methods=[{"name": "dillema", "parameters": parameters}])
    with site.sessions.begin() as session:
        session.get_one(Job, "job").spec = {"design": "balanced", "budget": 100}


@ON_SQLITE
def test_cells_fill_evenly_and_the_report_says_what_was_spent_where(site: Site) -> None:
    add_balanced_job(site, images=4)
    site.worker().step()
    design = site.metrics().design
    assert design is not None
    assert (design.kind, design.budget, [chosen.value for chosen in design.values]) == (
        "balanced",
        100,
        ["fog", "rain", "night"],
    )
    spent = {cell.value: (cell.label, cell.proposed, cell.rendered, cell.counted) for cell in design.cells}
    assert spent == {"fog": ("car", 4, 4, 4), "rain": ("car", 4, 4, 4), "night": ("car", 4, 0, 0)}
    assert design.rendered == 4 * 2 * 2
    assert 'id="design"' in site.report()


@ON_SQLITE
def test_a_free_job_has_no_values(site: Site) -> None:
    site.add_job(images=1, models=("m1",))
    site.worker().step()
    design = site.metrics().design
    assert design is not None
    assert (design.kind, design.values, design.cells) == ("free", [], [])
