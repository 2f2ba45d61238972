"""Calibrate the checks of a shipped profile on labelled natural output: the errors, and the model of validity.

    python -m research.measure.counterfactuals --split calibration --count 420 --out runs/natural-dillema
    python -m research.judges.label sheets runs/natural-dillema --count 420 --out runs/to-label   # and label them
    python -m research.calibrate.natural runs/natural-dillema runs/natural-lance runs/natural-shifts --write

It is `contrafact calibrate --validity` for the folders of a measurement instead of a job: the same fit, the same tables
of the profile. The signals of other models are left out, because the shipped profile has none of them; they add nothing
to the scorer's (`tinyworld.measure.check_signals`). AI models labelled the images, so the profile says `models`.

The thresholds of `shifts` without a calibration are fitted here too, since no images of known fault exist for it. They
are judged on the half of the source images that did not choose them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from contrafact.profile_calibration import calibration_tables, with_tables
from gateway.analysis.calibration import (
    class_error_rates,
    error_rates,
    fit_held_out,
    fit_validity,
    half_width,
    separation,
)
from gateway.feedback.calibration import CheckedEdit, label_kept, scored_images, signal_sample
from gateway.jobs.choices import method_defaults
from gateway.jobs.plans import checks_off
from gateway.methods import read_method
from gateway.methods.checks import effective_thresholds, with_label_rank
from gateway.methods.inverted import SweepParameters
from research.calibrate.edits import toml, with_thresholds
from research.judges.label import Label, shipped_labels
from research.judges.labelled import LabelledEdit, judged_sample, labelled_edits
from research.statistics.rates import rate_text
from shared.profiles.profile import SHIPPED, load_profile
from shared.schemas.calibration import JobCalibration, MethodCalibration, Thresholds
from shared.schemas.validity import OTHER_MODELS
from shared.seeds import derive_seed

DATA = "tinyworld"
PROFILE = "tiny"
NOTE = (
    "Made by `python -m research.calibrate.natural --write` on labelled output of the shipped generator.\n"
    "They hold for these thresholds and this scorer, on pictures of tinyworld."
)


FITTED = ("shifts",)  # methods whose thresholds are fitted here, not on images of known fault
THRESHOLD_NOTE = (
    "# Made by `python -m research.calibrate.natural --write` on output that AI models labelled; they belong to the\n"
    "# scorer's weights.\n"
)


def calibration_of(edits: Sequence[LabelledEdit]) -> JobCalibration:
    """The errors of the checks and the models of validity, by method, from labelled edits."""
    profile = load_profile(PROFILE)
    methods = sorted({edit.record.method for edit in edits})
    return JobCalibration(
        job=DATA,
        kind="classification",
        scorer=profile.evaluator.scorer.info("scorer").revision,
        profile=PROFILE,
        methods=[_of_method(method, [edit for edit in edits if edit.record.method == method]) for method in methods],
    )


def _of_method(name: str, edits: Sequence[LabelledEdit]) -> MethodCalibration:
    method = read_method(name, method_defaults(name, load_profile(PROFILE)))
    judged = judged_sample(edits, [edit.record.source for edit in edits])
    signals = signal_sample([edit.scores for edit in edits], [edit.kind for edit in edits], judged)
    thresholds = {check: dict(limits) for check, limits in method.thresholds.items()}
    sweeps = isinstance(method.parameters, SweepParameters)
    passable = judged.accepted if sweeps else np.array([label_kept(edit.scores) for edit in edits], np.bool_)
    seed = derive_seed("validity", DATA, name)
    validity = fit_validity(judged, signals.without(OTHER_MODELS), passable, seed)
    if validity is not None:
        kept = with_label_rank({**(thresholds if sweeps else {}), **validity.thresholds})
        validity = validity.model_copy(update={"thresholds": kept})
    valid = int(judged.valid.sum())
    images = scored_images([CheckedEdit(e.scores, e.record.accepted, e.record.check) for e in edits], judged, method)
    half = np.array([derive_seed("half", DATA, edit.record.source) % 2 == 0 for edit in edits], np.bool_)
    return MethodCalibration(
        method=name,
        rendered=len(edits),
        answered=len(edits),
        undecided=0,
        more=0,
        half_width=half_width(valid, len(edits) - valid, 0),
        errors=error_rates(judged),
        classes=class_error_rates(judged),
        thresholds=thresholds,
        checks_off=checks_off([method], "classification").get(name, []),
        separation=separation(images),
        fitted=fit_held_out(judged, images, half),
        validity=validity,
        sweeps=sweeps,
    )


def method_thresholds(calibration: JobCalibration) -> dict[str, Thresholds]:
    """The fitted thresholds of the methods in `FITTED`, for those with enough labels.

    Without those that every image passes: the fit turns a check off so, and plans and reports must say that it is off.
    """
    return {
        method.method: effective_thresholds(method.fitted.thresholds)
        for method in calibration.methods
        if method.method in FITTED and method.fitted is not None
    }


def with_calibration(profile: str, calibration: JobCalibration) -> str:
    """A profile's text with the calibration, and the thresholds of the methods in `FITTED`."""
    tables = calibration_tables(DATA, calibration, "validity", judged_by="models", note=NOTE)
    profile = with_tables(profile, DATA, tables)
    for name, thresholds in method_thresholds(calibration).items():
        profile = with_thresholds(profile, toml(thresholds, [name], THRESHOLD_NOTE), [name], THRESHOLD_NOTE)
    return profile


def held_out_lines(method: MethodCalibration) -> Iterator[str]:
    """The errors of the thresholds of a method on labelled images, and of thresholds fitted on the other half."""
    for name, errors in (("today", method.errors), ("fitted", method.fitted.errors if method.fitted else [])):
        for rates in errors:
            refused, accepted = rates.rejected_if_valid, rates.accepted_if_invalid
            yield (
                f"{method.method}, {name}, {rates.factor or 'all'}: "
                f"{rate_text(refused.count, refused.n)} of the valid ones refused, "
                f"{rate_text(accepted.count, accepted.n)} of the invalid ones accepted"
            )
    if method.fitted:
        yield f"{method.method}, fitted: AUROC {method.fitted.auroc:.3f}"


def main() -> None:
    """Print the tables; with `--write`, put them into the shipped profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with counterfactuals.jsonl and its images")
    parser.add_argument("--labels", nargs="*", type=Path, default=[], help="labels besides those of the repository")
    parser.add_argument("--write", action="store_true", help=f"put the tables into shared/profiles/{PROFILE}.toml")
    arguments = parser.parse_args()
    more = [Label.model_validate_json(line) for path in arguments.labels for line in path.read_text().splitlines()]
    try:
        edits = labelled_edits(arguments.folders, [*more, *shipped_labels()])
    except ValueError as error:
        raise SystemExit(str(error)) from None
    calibration = calibration_of(edits)
    print(calibration_tables(DATA, calibration, "validity", judged_by="models", note=NOTE))
    for method in calibration.methods:
        print(*held_out_lines(method), sep="\n")
    if arguments.write:
        path = SHIPPED / f"{PROFILE}.toml"
        path.write_text(with_calibration(path.read_text(encoding="utf-8"), calibration), encoding="utf-8")
        load_profile(PROFILE)


if __name__ == "__main__":
    main()
