"""The planted faults: each has its place in the code of today."""

from __future__ import annotations

from research.faults import ROOT, planted, read_faults


def test_each_fault_can_be_planted() -> None:
    faults = read_faults()
    assert len(faults) == 40
    for fault in faults:
        assert planted((ROOT / fault.file).read_text(encoding="utf-8"), fault)
