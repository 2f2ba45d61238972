"""What the check `recaption` adds to the others, on counterfactuals whose class the oracles have judged.

    python -m tinyworld.measure.counterfactuals --method lance --count 200 --out runs/lance
    python -m tinyworld.measure.recaption runs/lance

Nothing is rendered: the profile's captioner captions sources and images of a folder that `measure.counterfactuals` or
another measuring command wrote (`measured.py`). Of the counterfactuals that the other checks accept: how many that lost
their class does it refuse (its use), and how many that kept it (its price)? Of those that the others refuse, and of the
null arms, which nothing refuses, the same. What it is able to do is seen where the source of another class, the next in
the folder, stands for the image. Those that it refuses among the accepted are printed to be looked at.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from gateway.methods.counterfactual import SourceImage
from gateway.methods.recaption import Captioner, Recaptioned, recaptioned
from shared.schemas.base import ImagePayload
from tinyworld.judges.label import in_words
from tinyworld.judges.trials import TASK
from tinyworld.measure.records import Record, records
from tinyworld.measure.spawn_services import own_services

AT_ONCE = 4  # sources, so that they share batches


class Judged(NamedTuple):
    """A record, its new caption ("" where the check is not made), and whether it names the class (None: not made)."""

    record: Record
    caption: str
    named: bool | None


def judged(services: Captioner, folder: Path) -> tuple[list[Judged], list[bool | None]]:
    """Every rendered image of a folder captioned anew; and whether the source of another class passes for one of each.

    Raises ValueError where there are no images.
    """
    by_source: dict[str, list[Record]] = defaultdict(list)
    for one in records(folder):
        if one.image:
            by_source[one.source].append(one)
    if not by_source:
        raise ValueError(f"there are no images in {folder}; run python -m tinyworld.measure.counterfactuals first")
    sources = list(by_source)
    labels = [by_source[path][0].label for path in sources]

    def of(place: int) -> tuple[list[Judged], bool | None]:
        after = [*range(place, len(sources)), *range(place)]
        other = next((sources[one] for one in after if labels[one] != labels[place]), None)
        some = by_source[sources[place]]
        shown = [one.image for one in some] + ([other] if other else [])
        source = SourceImage(sources[place], _payload(folder / sources[place]), labels[place])
        new = recaptioned(services, source, TASK, [_payload(folder / path) for path in shown])
        found = [Judged(one, said.caption if said else "", _named(said)) for one, said in zip(some, new, strict=False)]
        return found, _named(new[-1]) if other else None

    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(of, range(len(sources))))
    return [one for found, _ in answers for one in found], [swapped for _, swapped in answers]


def _named(new: Recaptioned | None) -> bool | None:
    return None if new is None else new.named == 1.0


def table(found: Sequence[Judged], swapped: Sequence[bool | None]) -> Iterator[str]:
    """Per group: of those that lost their class and of those that kept it, which share the check refuses."""
    edits = [one for one in found if one.record.arm == "edit"]
    accepted = [one for one in edits if one.record.accepted]
    factors = sorted({one.record.factor for one in accepted})
    groups = {
        "accepted by the other checks": accepted,
        **{f". {factor}": [one for one in accepted if one.record.factor == factor] for factor in factors},
        "refused by them": [one for one in edits if not one.record.accepted],
        "null arms": [one for one in found if one.record.arm == "null"],
    }
    for name, some in groups.items():
        if some:
            lost, kept = ([one for one in some if one.record.kept is here] for here in (False, True))
            made = sum(one.named is not None for one in some)
            yield f"{name} ({len(some)}, check made for {made})"
            yield f"    refused {_refused([one.named for one in lost])} of those that lost their class"
            yield f"    refused {_refused([one.named for one in kept])} of those that kept it"
    yield f"another class's source in place of the image: refused {_refused(swapped)}"
    for one in accepted:
        if one.named is False:
            yield f"{one.record.image} ({one.record.label}, {'kept' if one.record.kept else 'lost'}): {one.caption}"


def _refused(named: Sequence[bool | None]) -> str:
    made = [one for one in named if one is not None]
    return in_words(made.count(False), len(made))


def _payload(path: Path) -> ImagePayload:
    return ImagePayload(png=path.read_bytes())


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="with counterfactuals.jsonl and its images")
    parser.add_argument("--profile", default="tiny")
    arguments = parser.parse_args()
    with own_services(arguments.profile, ["caption_service"]) as services:
        try:
            print(*table(*judged(services, arguments.folder)), sep="\n")
        except ValueError as error:
            raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
