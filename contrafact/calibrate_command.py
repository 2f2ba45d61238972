"""`contrafact calibrate`: errors of the checks from people's reviews, and a profile that uses them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from contrafact.command_line import URL, JobId, Json, Key, Url, messages, open_client, print_output
from contrafact.profile_calibration import Choice, calibration_tables, chosen_errors, write_profile
from shared.schemas.calibration import CheckErrorRates, JobCalibration, MethodCalibration
from shared.schemas.effects import Rate
from shared.words.wording import limits, percent

ProfileFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="your profile's TOML file; with --write it is changed")
]
Write = Annotated[bool, typer.Option("--write", help="write the errors and their thresholds into --profile")]
DataName = Annotated[str, typer.Option(help="name of the data set in the profile; default: job-JOB")]
Fitted = Annotated[
    bool, typer.Option("--fitted", help="take the thresholds fitted on the sample, with their held-out errors")
]
Validity = Annotated[
    bool,
    typer.Option("--validity", help="take the one check that combines all scores, with its cross-validated errors"),
]


def calibrate(
    job: JobId,
    profile: ProfileFile = None,
    write: Write = False,
    data: DataName = "",
    fitted: Fitted = False,
    validity: Validity = False,
    as_json: Json = False,
    url: Url = URL,
    api_key: Key = "",
) -> None:
    """Measure the errors of the image checks from the reviews of a random sample, and write them into your profile."""
    if write and profile is None:
        raise typer.BadParameter("name the profile to write to with --profile FILE")
    if fitted and validity:
        raise typer.BadParameter("choose one of --fitted and --validity")
    choice: Choice = "validity" if validity else "fitted" if fitted else "job"
    name = data or f"job-{job}"
    with open_client(url, api_key) as client:
        calibration = client.calibration(job)
        print_output(calibration.model_dump_json() if as_json else calibration_table(calibration, choice))
        for line in advice(calibration):
            messages.print(line, markup=False, soft_wrap=True)
        messages.print(f"The sample: {client.calibration_page_of(job)}", markup=False, soft_wrap=True)
        if profile is not None:
            _write(profile, name, calibration_tables(name, calibration, choice), write)


def _write(profile: Path, name: str, tables: str, write: bool) -> None:
    """Write the tables into the profile, or print what `--write` would change."""
    text = f"\nWith --write, {profile} gets:\n\n{tables}"
    if write:
        write_profile(profile, name, tables)
        text = (
            f"[calibration.{name}] is in {profile}. Restart the services with this profile, and submit with "
            f"--calibration {name}."
        )
    messages.print(text, markup=False, soft_wrap=True)


def calibration_table(calibration: JobCalibration, choice: Choice) -> RenderableType:
    """The errors by method and factor, and the separation of each check."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in ("method", "factor", "valid, refused", "invalid, accepted", "in the profile"):
        table.add_column(column, overflow="fold")
    for method in calibration.methods:
        chosen = chosen_errors(method, choice)
        for rates in chosen.errors:
            refused, accepted = _rate(rates.rejected_if_valid), _rate(rates.accepted_if_invalid)
            table.add_row(method.method, rates.factor or "all", refused, accepted, _use(rates))
        for of_class in chosen.classes:
            if of_class.errors is not None:
                refused, accepted = _rate(of_class.rejected_if_valid), _rate(of_class.accepted_if_invalid)
                table.add_row(method.method, f"class {of_class.label}", refused, accepted, "yes")
    return Group(table, *(Text(line) for method in calibration.methods for line in _check_lines(method)))


def _rate(rate: Rate) -> str:
    return "none" if not rate.n else f"{percent(rate.value)} of {rate.n} ({limits(rate)})"


def _use(rates: CheckErrorRates) -> str:
    if rates.errors is None:
        return "no: too few"
    if rates.factor is None:
        return ""
    return "errors of all factors" if rates.pooled else "yes"


def _check_lines(method: MethodCalibration) -> list[str]:
    """Lines on the checks of one method: how well they separate, which are off, and how fitted thresholds do."""
    lines = []
    if method.separation:
        areas = ", ".join(f"{check} {value:.2f}" for check, value in method.separation.items())
        lines.append(f"{method.method}: AUROC of the scores: {areas}")
    if method.judge:
        areas = ", ".join(f"{name} {of.value:.2f} ({of.low:.2f} to {of.high:.2f})" for name, of in method.judge.items())
        lines.append(f"{method.method}: AUROC of the vision-language judge on these images: {areas}")
    if method.checks_off:
        lines.append(f"{method.method}: without a threshold: {', '.join(method.checks_off)}")
    if method.fitted is not None:
        pooled = method.fitted.errors[0]
        lines.append(
            f"{method.method}: thresholds fitted on half of the source images refuse "
            f"{_rate(pooled.rejected_if_valid)} valid and accept {_rate(pooled.accepted_if_invalid)} invalid images of "
            f"the other half; AUROC {method.fitted.auroc:.2f}"
        )
    if method.validity is not None:
        pooled, model = method.validity.errors[0], method.validity.model
        auroc, scores = model.auroc, model.auroc_of_scores
        lines.append(
            f"{method.method}: all scores together, with factor, value and class: AUROC {auroc.value:.2f} "
            f"({auroc.low:.2f} to {auroc.high:.2f}; without value and class {scores.value:.2f}); "
            f"the check `validity` refuses {_rate(pooled.rejected_if_valid)} valid and accepts "
            f"{_rate(pooled.accepted_if_invalid)} invalid images that it was not fitted on"
        )
    if method.fitted is not None and method.sweeps:
        lines.append(
            f"{method.method}: its thresholds also choose among renderings, so --fitted keeps those of the job. Set "
            "the fitted ones in the profile, run a new job, and review that"
        )
    return lines


def advice(calibration: JobCalibration) -> list[str]:
    """What is too few, and how many more reviews change it."""
    lines = []
    for method in calibration.methods:
        progress = f"{method.method}: {method.answered} of {method.rendered} reviewed"
        if method.undecided:
            progress += f", {method.undecided} of them undecided"
        width = f"± {100 * method.half_width:.0f} points or less"
        if method.errors[0].errors is None:
            lines.append(
                f"{progress}. Too few: errors need 10 valid and 10 invalid images. Review about {method.more} more."
                if method.more
                else f"{progress}. Too few valid or invalid images, and none are left. Calibrate on a larger job."
            )
        elif method.more:
            lines.append(f"{progress}. {method.more} more give intervals of {width}.")
        else:
            lines.append(f"{progress}: the whole sample. A larger job gives narrower intervals.")
    return lines
