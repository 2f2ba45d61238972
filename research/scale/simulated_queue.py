"""What slow editors waste: a job's edits in the real batcher, with one call per source image or one per edit.

    python -m research.scale.simulated_queue [--images 24] [--edits 5] [--in-flight 8] [--scale 100]

An editor takes some seconds for an edit and makes one at a time. Each image of a job has a few edits and a null arm, a
call's deadline is 600 s, and a call that a busy service refuses is repeated for 120 s, as by the worker. Time runs
`--scale` times as fast. *Waste* is the share of the editor's work whose reply nobody waited for or kept, *ideal* the
time of all edits without a pause. An image fails for good after `ATTEMPTS` calls that end at their deadline.

`image`: the edits of an image, one after the other, are one call. `edit`: each edit is a call, and finished edits are
kept.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from prometheus_client import CollectorRegistry

from shared.problems import DeadlineExceeded, Overloaded
from shared.service.batch_metrics import BatchMetrics
from shared.service.batching import BatchPolicy, MicroBatcher
from shared.service.turns import work_started

Calls = Literal["image", "edit"]
DEADLINE_SECONDS, WAIT_SECONDS, PAUSE_SECONDS, RELEASE_SECONDS = 600.0, 120.0, 10.0, 5.0  # the defaults
ATTEMPTS = 25  # 5 that are free and 20 lost leases
SECONDS = (25.0, 45.0)
Edit = tuple[int, int]  # of an image


@dataclass(slots=True)
class SlowService:
    """An editor behind a batcher, and the edits that it has made and the job has kept."""

    seconds: float
    scale: float
    computed: list[Edit] = field(default_factory=list)
    kept: set[Edit] = field(default_factory=set)
    failed: int = 0
    refusals: int = 0

    def run(self, _: object, items: Sequence[Edit]) -> Sequence[Edit]:
        """Make some edits."""
        time.sleep(self.seconds * len(items) / self.scale)
        self.computed += items
        return items

    def batcher(self) -> MicroBatcher[object, Edit, Edit]:
        """The batcher of an editor that makes one edit at a time, such as a pipeline of diffusers."""
        metrics = BatchMetrics("simulated", CollectorRegistry())
        return MicroBatcher(self.run, BatchPolicy(max_batch=1, max_wait=0.0), metrics, kind=lambda _: "edit")


async def simulate(calls: Calls, site: SlowService, images: int, edits: int, in_flight: int) -> float:
    """Run a job. Returns its time in the editor's seconds."""
    batcher, started = site.batcher(), time.monotonic()
    work = [work_on_image, work_on_edits][calls == "edit"]
    waiting: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
    for image in range(images):
        waiting.put_nowait((image, 0))
    unfinished = images

    async def step() -> None:
        nonlocal unfinished
        while True:
            image, attempts = await waiting.get()
            with work_started(time.time()):
                try:
                    await work(batcher, site, image, edits)
                    unfinished -= 1
                    continue
                except DeadlineExceeded:
                    attempts += 1
                except Overloaded:
                    pass
            if attempts == ATTEMPTS:
                site.failed, unfinished = site.failed + 1, unfinished - 1
            else:
                release = waiting.put_nowait
                asyncio.get_running_loop().call_later(RELEASE_SECONDS / site.scale, release, (image, attempts))

    steps = [asyncio.create_task(step()) for _ in range(in_flight)]
    while unfinished:
        await asyncio.sleep(1 / site.scale)
    for running in steps:
        running.cancel()
    batcher.drain()
    return (time.monotonic() - started) * site.scale


async def work_on_image(batcher: MicroBatcher[object, Edit, Edit], site: SlowService, image: int, edits: int) -> None:
    """One call for all edits, with one deadline: as it was."""
    deadline = time.monotonic() + DEADLINE_SECONDS / site.scale
    made = [await batcher.submit((image, number), key=(image, number), deadline=deadline) for number in range(edits)]
    site.kept |= set(made)


async def work_on_edits(batcher: MicroBatcher[object, Edit, Edit], site: SlowService, image: int, edits: int) -> None:
    """A call for each edit that is not kept yet, all at the same time."""
    missing = [(image, number) for number in range(edits) if (image, number) not in site.kept]
    outcomes = await asyncio.gather(*(_call(batcher, site, edit) for edit in missing), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _call(batcher: MicroBatcher[object, Edit, Edit], site: SlowService, edit: Edit) -> None:
    until = time.monotonic() + WAIT_SECONDS / site.scale
    while True:
        try:
            site.kept.add(
                await batcher.submit(edit, key=edit, deadline=time.monotonic() + DEADLINE_SECONDS / site.scale)
            )
            return
        except Overloaded:
            site.refusals += 1
            if time.monotonic() > until:
                raise
            await asyncio.sleep(PAUSE_SECONDS / site.scale)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--edits", type=int, default=5, help="of an image, its null arm among them")
    parser.add_argument("--in-flight", type=int, default=8)
    parser.add_argument("--calls", nargs="+", choices=("image", "edit"), default=("image", "edit"))
    parser.add_argument("--scale", type=float, default=100.0)
    options = parser.parse_args()
    cases = [(calls, SlowService(seconds, options.scale)) for seconds in SECONDS for calls in options.calls]

    def run(case: tuple[Calls, SlowService]) -> float:
        return asyncio.run(simulate(*case, options.images, options.edits, options.in_flight))

    with ThreadPoolExecutor(len(cases)) as threads:
        times = list(threads.map(run, cases))
    for (calls, site), took in zip(cases, times, strict=True):
        ideal, waste = options.images * options.edits * site.seconds, 1 - len(site.kept) / len(site.computed)
        print(
            f"{site.seconds:g} s an edit, one call per {calls:5}: {took:6.0f} s, {took / ideal:4.2f} x ideal, "
            f"{waste:5.1%} of the edits wasted, {site.failed} of {options.images} images failed, "
            f"{site.refusals} refusals"
        )


if __name__ == "__main__":
    main()
