"""Rows of figures that a part writes one by one, so that those before an end by the clock are kept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass(slots=True)
class Run:
    """One run of one part: the device, `tiny` in place of full sizes, and where figures and weights go.

    `ends` is a value of `time.monotonic`: no row begins after it.
    """

    device: str
    tiny: bool
    out: Path
    weights: Path
    ends: float
    part: str
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def on_gpu(self) -> bool:
        return self.device.startswith("cuda")

    def synchronise(self) -> None:
        """Wait until the device has computed all that was submitted."""
        if self.on_gpu:
            torch.cuda.synchronize()

    @contextmanager
    def row(self, **labels: object) -> Iterator[dict[str, Any]]:
        """Measure a block, and write its row: labels, synchronised seconds, peak memory on a GPU, and what is added.

        Raises OutOfTime instead if the time is up. Out of memory becomes part of the row.
        """
        if time.monotonic() > self.ends:
            raise OutOfTime
        row: dict[str, Any] = dict(labels)
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        self.synchronise()
        started = time.perf_counter()
        try:
            yield row
            self.synchronise()
        except torch.OutOfMemoryError as error:
            row["out_of_memory"] = str(error).splitlines()[0]
            torch.cuda.empty_cache()
        row.setdefault("seconds", round(time.perf_counter() - started, 4))
        if self.on_gpu:
            row["peak_gb"] = round(torch.cuda.max_memory_reserved() / 1e9, 2)
        self.rows.append(row)
        self.write()
        print(json.dumps(row), flush=True)

    def write(self, **more: object) -> None:
        """Write the rows so far with the conditions of the run."""
        card = torch.cuda.get_device_name() if self.on_gpu else "none"
        conditions = {
            "part": self.part, "device": self.device, "card": card, "size": "tiny" if self.tiny else "full",
            "torch": torch.__version__, "cuda": torch.version.cuda or "",
        }  # fmt: skip
        self.out.mkdir(parents=True, exist_ok=True)
        document = conditions | {"rows": self.rows} | more
        (self.out / f"{self.part}.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


class OutOfTime(Exception):
    """No further row begins."""
