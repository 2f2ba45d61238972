"""How well the checks separate valid from invalid natural output: each score alone, today's checks, and all together.

    python -m tinyworld.measure.counterfactuals --split calibration --count 420 --out runs/natural-dillema
    python -m tinyworld.judges.label sheets runs/natural-dillema --count 420 --out runs/to-label   # and label them
    python -m tinyworld.measure.check_signals runs/natural-dillema runs/natural-lance

An edit is valid if the labels in `tinyworld/labels` (or `--labels`) say that the class is kept and the edit shown;
edits that the labeller could not judge are left out. AUROC of each score, and of the logistic regression of
`gateway.analysis.validity_model`, cross-validated by source image, with 95 % intervals from resampled source images:
by method, by factor and by class. `--answer` takes one of the two questions in place of validity.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from gateway.analysis.effects import Floats
from gateway.analysis.thresholds import Booleans
from gateway.analysis.validity_model import auroc_interval, held_out_accepted, held_out_probabilities
from gateway.reviews.calibration import signal_sample
from shared.schemas.estimates import Estimate
from shared.schemas.validity import OTHER_MODELS, SIGNALS
from tinyworld.judges.label import Label, shipped_labels
from tinyworld.judges.labelled import LabelledEdit, judged_sample, labelled_edits
from tinyworld.statistics.rates import rate_text

SEED = 1
LEAST = 10  # images of each kind from which an AUROC is printed
_ANSWERS: dict[str, Callable[[LabelledEdit], bool | None]] = {
    "valid": lambda edit: edit.valid,
    "kept": lambda edit: edit.label.class_kept,
    "shown": lambda edit: edit.label.edit_shown,
}


def table(edits: Sequence[LabelledEdit]) -> Iterator[str]:
    """The lines of one method: how many, today's checks, each score, and the model by factor and class."""
    sample = judged_sample(edits, [edit.record.source for edit in edits])
    valid, group = sample.valid, sample.group
    yield f"{len(edits)} edits: valid {rate_text(int(valid.sum()), len(valid))}"
    if min(valid.sum(), (~valid).sum()) < LEAST:
        yield "too few valid or invalid ones"
        return
    accepted = sample.accepted
    yield f"today's checks accept {_rates(accepted, valid)}"
    yield f"    AUROC of their verdict {_text(auroc_interval(accepted.astype(np.float64), valid, group, SEED))}"
    signals = signal_sample([edit.scores for edit in edits], [edit.kind for edit in edits], sample)
    for place, name in enumerate(signals.names):
        values = signals.signals[:, place]
        scored = ~np.isnan(values)
        yield f"{name:16} {_area(values, valid, group, scored)} on {int(scored.sum())}"
    variants = {
        "scores, value and class": signals,
        "scores alone": signals.of_factors(),
        "scores of the scorer alone": signals.of_factors().without(OTHER_MODELS),
        "value and class alone": signals.without(SIGNALS),
    }
    for name, variant in variants.items():
        yield f"{name:26} {_text(auroc_interval(held_out_probabilities(variant, SEED), valid, group, SEED))}"
    probabilities = held_out_probabilities(signals, SEED)
    reached = held_out_accepted(probabilities, valid, group, SEED)
    yield f"its check accepts {_rates(reached, valid)}"
    for kind, names in (
        ("factor", [edit.record.factor for edit in edits]),
        ("class", [edit.record.label for edit in edits]),
    ):
        for name in sorted(set(names)):
            in_method = np.array([method == name for method in names], np.bool_)
            yield f"{kind} {name:12} {_area(probabilities, valid, group, in_method)} on {int(in_method.sum())}"


def _area(values: Floats, valid: Booleans, group: np.ndarray[tuple[int], np.dtype[np.int64]], chosen: Booleans) -> str:
    kinds = valid[chosen]
    if min(kinds.sum(), (~kinds).sum()) < LEAST:
        return f"{int(kinds.sum())} valid, {int((~kinds).sum())} invalid: too few"
    return _text(auroc_interval(values[chosen], kinds, group[chosen], SEED))


def _rates(accepted: Booleans, valid: Booleans) -> str:
    of_valid = rate_text(int(accepted[valid].sum()), int(valid.sum()))
    of_invalid = rate_text(int(accepted[~valid].sum()), int((~valid).sum()))
    return f"{of_valid} of the valid ones\n    and {of_invalid} of the invalid ones"


def _text(area: Estimate) -> str:
    return f"{area.value:.3f} ({area.low:.3f} to {area.high:.3f})"


def with_answers(edits: Sequence[LabelledEdit], answer: str) -> list[LabelledEdit]:
    """The edits with one answer in place of validity, without those that lack it."""
    answers = [(edit, _ANSWERS[answer](edit)) for edit in edits]
    return [edit._replace(valid=answer) for edit, answer in answers if answer is not None]


def main() -> None:
    """Print a table per method."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with counterfactuals.jsonl and its images")
    parser.add_argument("--labels", nargs="*", type=Path, default=[], help="labels besides those of the repository")
    parser.add_argument("--answer", choices=tuple(_ANSWERS), default="valid")
    parser.add_argument("--profile", default="tiny")
    arguments = parser.parse_args()
    more = [Label.model_validate_json(line) for path in arguments.labels for line in path.read_text().splitlines()]
    try:
        edits = labelled_edits(arguments.folders, [*more, *shipped_labels()], arguments.profile)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    methods = sorted({edit.record.method for edit in edits})
    for name, chosen in [*((method, {method}) for method in methods), ("all methods, one model", {*methods})]:
        print(name)
        answers = with_answers([edit for edit in edits if edit.record.method in chosen], arguments.answer)
        print(*(f"    {line}" for line in table(answers)), sep="\n")


if __name__ == "__main__":
    main()
