"""Measure what the check `recaption` adds to the others, on counterfactuals whose class the oracles judged.

    python -m tinyworld.measure.counterfactuals --method lance --count 200 --out runs/lance
    python -m tinyworld.measure.recaption runs/lance

Nothing is rendered: the profile's captioner captions the sources and images of a folder that
`tinyworld.measure.counterfactuals` wrote. Of the counterfactuals that the other checks accept, the check should refuse
those that lost their class (its benefit) and accept those that kept it (its cost). The same is measured for
counterfactuals that the other checks refuse, and for null arms, which are never refused. Its power is measured by
replacing the image with the next source of another class. Accepted images that it refuses are printed for inspection.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from gateway.methods.counterfactual import MethodImage
from gateway.methods.recaption import Captioner, NewCaption, recaption_images
from shared.schemas.base import ImagePayload
from tinyworld.judges.records import Record, records
from tinyworld.judges.trials import TASK
from tinyworld.statistics.rates import rate_text
from tinyworld.system.spawn_services import spawn_services

AT_ONCE = 4  # sources, so that they share batches


class RecaptionResult(NamedTuple):
    """A record, its new caption ("" if the check does not apply), and whether it names the class (None likewise)."""

    record: Record
    caption: str
    named: bool | None


def recaption_records(services: Captioner, folder: Path) -> tuple[list[RecaptionResult], list[bool | None]]:
    """Caption every rendered image of a folder; also whether a source of another class passes, once per source.

    Raises ValueError if there are no images.
    """
    by_source: dict[str, list[Record]] = defaultdict(list)
    for record in records(folder):
        if record.image:
            by_source[record.source].append(record)
    if not by_source:
        raise ValueError(f"there are no images in {folder}; run python -m tinyworld.measure.counterfactuals first")
    sources = list(by_source)
    labels = [by_source[path][0].label for path in sources]

    def of(place: int) -> tuple[list[RecaptionResult], bool | None]:
        after = [*range(place, len(sources)), *range(place)]
        other_source = next((sources[index] for index in after if labels[index] != labels[place]), None)
        records_of_source = by_source[sources[place]]
        paths = [record.image for record in records_of_source] + ([other_source] if other_source else [])
        source = MethodImage(sources[place], _payload(folder / sources[place]), labels[place])
        new = recaption_images(services, source, TASK, [_payload(folder / path) for path in paths])
        results = [
            RecaptionResult(record, caption.caption if caption else "", _names_class(caption))
            for record, caption in zip(records_of_source, new, strict=False)
        ]
        return results, _names_class(new[-1]) if other_source else None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(of, range(len(sources))))
    return [result for results, _ in answers for result in results], [swapped for _, swapped in answers]


def _names_class(new: NewCaption | None) -> bool | None:
    return None if new is None else new.named == 1.0


def table(results: Sequence[RecaptionResult], swapped: Sequence[bool | None]) -> Iterator[str]:
    """Per group: the shares that the check refuses of images that lost their class and of images that kept it."""
    edits = [result for result in results if result.record.arm == "edit"]
    accepted = [result for result in edits if result.record.accepted]
    factors = sorted({result.record.factor for result in accepted})
    groups = {
        "accepted by the other checks": accepted,
        **{f". {factor}": [result for result in accepted if result.record.factor == factor] for factor in factors},
        "refused by them": [result for result in edits if not result.record.accepted],
        "null arms": [result for result in results if result.record.arm == "null"],
    }
    for name, results_of_group in groups.items():
        if results_of_group:
            lost, kept = (
                [result for result in results_of_group if result.record.kept is expected] for expected in (False, True)
            )
            checked = sum(result.named is not None for result in results_of_group)
            yield f"{name} ({len(results_of_group)}, check made for {checked})"
            yield f"    refused {_refused_row([result.named for result in lost])} of those that lost their class"
            yield f"    refused {_refused_row([result.named for result in kept])} of those that kept it"
    yield f"another class's source in place of the image: refused {_refused_row(swapped)}"
    for result in accepted:
        if result.named is False:
            record = result.record
            yield f"{record.image} ({record.label}, {'kept' if record.kept else 'lost'}): {result.caption}"


def _refused_row(named: Sequence[bool | None]) -> str:
    verdicts = [verdict for verdict in named if verdict is not None]
    return rate_text(verdicts.count(False), len(verdicts))


def _payload(path: Path) -> ImagePayload:
    return ImagePayload(png=path.read_bytes())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with counterfactuals.jsonl and its images")
    parser.add_argument("--profile", default="tiny")
    arguments = parser.parse_args()
    with spawn_services(arguments.profile, ["caption_service"]) as services:
        try:
            print(*table(*recaption_records(services, arguments.folder)), sep="\n")
        except ValueError as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
