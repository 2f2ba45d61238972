"""Calibrate the checks of a shipped profile on labelled natural output: the errors, and the model of validity.

    python -m tinyworld.measure.counterfactuals --split calibration --count 420 --out runs/natural-dillema
    python -m tinyworld.judges.label sheets runs/natural-dillema --count 420 --out runs/to-label   # and label them
    python -m tinyworld.calibrate.natural runs/natural-dillema runs/natural-lance --write

It is `contrafact calibrate --validity` for the folders of a measurement instead of a job: the same fit, the same tables
of the profile. The signals of other models are left out, because the shipped profile has none of them; they add nothing
to the scorer's (`tinyworld.measure.check_signals`). AI models labelled the images, so the profile says `models`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from contrafact.profile_calibration import calibration_tables, with_tables
from gateway.analysis.calibration import error_rates, fit_validity, half_width
from gateway.jobs.choices import method_defaults
from gateway.methods import read_method
from gateway.methods.inverted import SweepParameters
from gateway.reviews.calibration import signal_sample
from shared.profiles import SHIPPED, load_profile
from shared.schemas.calibration import JobCalibration, MethodCalibration
from shared.schemas.validity import OTHER_MODELS
from shared.seeds import derive_seed
from tinyworld.judges.label import Label, shipped_labels
from tinyworld.judges.labelled import LabelledEdit, judged_sample, labelled_edits

DATA = "tinyworld"
PROFILE = "tiny"
NOTE = (
    "# Made by `python -m tinyworld.calibrate.natural --write` on labelled output of the shipped generator.\n"
    "# They hold for these thresholds and this scorer, on pictures of tinyworld.\n"
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
    passable = judged.accepted if sweeps else np.ones(len(edits), np.bool_)
    seed = derive_seed("validity", DATA, name)
    validity = fit_validity(judged, signals.without(OTHER_MODELS), passable, seed)
    if validity is not None and sweeps:
        validity = validity.model_copy(update={"thresholds": {**thresholds, **validity.thresholds}})
    valid = int(judged.valid.sum())
    return MethodCalibration(
        method=name,
        rendered=len(edits),
        answered=len(edits),
        undecided=0,
        more=0,
        half_width=half_width(valid, len(edits) - valid, 0),
        errors=error_rates(judged),
        thresholds=thresholds,
        checks_off=[],
        separation={},
        fitted=None,
        validity=validity,
        sweeps=sweeps,
    )


def main() -> None:
    """Print the tables; with `--write`, put them into the shipped profile."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with counterfactuals.jsonl and its images")
    parser.add_argument("--labels", nargs="*", type=Path, default=[], help="labels besides those of the repository")
    parser.add_argument("--write", action="store_true", help=f"put the tables into shared/profiles/{PROFILE}.toml")
    arguments = parser.parse_args()
    more = [Label.model_validate_json(line) for path in arguments.labels for line in path.read_text().splitlines()]
    try:
        edits = labelled_edits(arguments.folders, [*more, *shipped_labels()], PROFILE)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    tables = calibration_tables(DATA, calibration_of(edits), "validity", judged_by="models", note=NOTE)
    print(tables)
    if arguments.write:
        path = SHIPPED / f"{PROFILE}.toml"
        path.write_text(with_tables(path.read_text(encoding="utf-8"), DATA, tables), encoding="utf-8")
        load_profile(PROFILE)


if __name__ == "__main__":
    main()
