"""Writes `[calibration.DATA]` of a profile's TOML file. All other tables keep their text and their comments."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from shared.profiles import ProfileError, load_profile, shipped_profiles
from shared.schemas.calibration import (
    CheckErrorRates,
    ClassErrorRates,
    FittedThresholds,
    FittedValidity,
    JobCalibration,
    MethodCalibration,
)
from shared.schemas.effects import CheckErrors, Judges
from shared.schemas.estimates import Rate
from shared.schemas.validity import ValidityModel
from shared.wording import limits, percent

_NOTE = "# Made by `contrafact calibrate {}`. They hold for these thresholds and this scorer, on similar images.\n"
_BARE = re.compile(r"[\w-]+", re.ASCII)
_KEY = r"""\s*(?:([\w-]+)|"((?:[^"\\]|\\.)*)"|'([^']*)')\s*"""
_HEADER = re.compile(rf"\s*\[\[?{_KEY}(?:\.{_KEY})?[.\]]")


Choice = Literal["job", "fitted", "validity"]  # whose thresholds, and with them whose errors


def calibration_tables(
    data: str, calibration: JobCalibration, choice: Choice = "job", *, judged_by: Judges = "people", note: str = _NOTE
) -> str:
    """The tables of `[calibration.DATA]`, for the methods with enough reviews, with their models of validity.

    `choice`: `fitted`, with the thresholds fitted on the sample and their held-out errors, for methods that do not
    sweep; `validity`, with the check of that name and its errors, for methods with a model. Otherwise, and for other
    methods, with the job's thresholds and their errors. Raises ValueError if no method has enough reviews, or if
    several scorers made the job.
    """
    if not calibration.scorer:
        raise ValueError(
            "the job's images were not all scored by one version of the scorer, so its errors belong to none; "
            "calibrate on a new job"
        )
    methods = [(method, chosen_errors(method, choice)) for method in calibration.methods]
    methods = [(method, chosen) for method, chosen in methods if any(rates.errors for rates in chosen.errors)]
    if not methods:
        raise ValueError("no method has 10 valid and 10 invalid reviewed images; review more of the sample")
    judged = sum(method.answered - method.undecided for method, *_ in methods)
    lines = [f"[calibration.{_key(data)}]", f'judged_by = "{judged_by}"', f"scorer = {json.dumps(calibration.scorer)}"]
    lines += [f"judged = {judged}"]
    lines += [f'kind = "{calibration.kind}"'] if calibration.kind != "classification" else []
    for method, chosen in methods:
        tables = f"calibration.{_key(data)}.%s.{_key(method.method)}"
        for rates in chosen.errors:
            lines += _error_lines(tables % "methods", rates)
        for of_class in chosen.classes:
            lines += _class_lines(tables % "classes", of_class)
        lines += ["", f"[{tables % 'thresholds'}]"]  # checks that it lacks stay off
        lines += [f"{_key(check)} = {_inline(by_factor)}" for check, by_factor in chosen.thresholds.items()]
        if method.validity is not None:
            lines += _model_lines(tables % "validity_model", method.validity.model)
    return note.format(calibration.job) + "\n".join(lines) + "\n"


def chosen_errors(method: MethodCalibration, choice: Choice) -> MethodCalibration | FittedThresholds | FittedValidity:
    """The errors of a method with the thresholds that they hold for: of the choice if it has them, else of the job."""
    if choice == "validity" and method.validity is not None:
        return method.validity
    if choice == "fitted" and method.fitted is not None and not method.sweeps:
        return method.fitted
    return method


def _model_lines(table: str, model: ValidityModel) -> Iterator[str]:
    """The tables of a model of validity."""
    yield from ("", f"# fitted on {model.images} images, {model.valid} of them valid", f"[{table}]")
    yield from (f"{name} = {getattr(model, name)!r}" for name in ("intercept", "images", "valid"))
    yield from (f"{name} = {_inline(getattr(model, name).model_dump())}" for name in ("auroc", "auroc_of_scores"))
    kinds = {"factors": model.factors, "values": model.values, "classes": model.classes}
    yield from (f"{name} = {_inline(weights)}" for name, weights in kinds.items() if weights)
    yield from ("", f"[{table}.signals]")
    yield from (f"{_key(name)} = {_inline(signal.model_dump())}" for name, signal in model.signals.items())


def _inline(by_factor: Mapping[str, float]) -> str:
    return f"{{ {', '.join(f'{_key(factor)} = {lowest!r}' for factor, lowest in by_factor.items())} }}"


def _error_lines(method: str, rates: CheckErrorRates) -> Iterator[str]:
    """The table of one factor, with its rates as a comment. Factors that the sample lacks have none: not `default`."""
    if rates.errors is None or rates.factor is None:
        return
    refused, accepted = rates.rejected_if_valid, rates.accepted_if_invalid
    yield ""
    if rates.pooled:
        yield f"# {rates.images} images of this factor, too few: the errors over all factors"
    else:
        yield _rate_comment(refused, accepted)
    yield from _count_lines(f"{method}.{_key(rates.factor)}", rates.errors)


def _class_lines(method: str, rates: ClassErrorRates) -> Iterator[str]:
    """The table of one class, with its rates as a comment; none for a class with too few images."""
    if rates.errors is not None:
        yield from ("", _rate_comment(rates.rejected_if_valid, rates.accepted_if_invalid))
        yield from _count_lines(f"{method}.{_key(rates.label)}", rates.errors)


def _rate_comment(refused: Rate, accepted: Rate) -> str:
    return (
        f"# of {refused.n} valid images {percent(refused.value)} are refused ({limits(refused)}), "
        f"of {accepted.n} invalid ones {percent(accepted.value)} accepted ({limits(accepted)})"
    )


def _count_lines(table: str, errors: CheckErrors) -> Iterator[str]:
    yield f"[{table}]"
    yield from (f"{name} = {count}" for name, count in errors.model_dump().items())


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)


def with_tables(text: str, data: str, tables: str) -> str:
    """A profile's text with `tables` in place of its `[calibration.DATA]`, or at its end.

    Raises ValueError if the text defines this calibration in another form, such as an inline table.
    """
    kept = [line for block in _blocks(text) for line in (_remainder(block) if _is_of(block, data) else block)]
    written = f"{''.join(kept).rstrip()}\n\n{tables}"
    _refuse_other_changes(text, written, data)
    return written


def _blocks(text: str) -> list[list[str]]:
    """The lines of each table: the comments right above its header, the header, and what follows it."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines(keepends=True):
        if _HEADER.match(line):
            last = blocks[-1]
            above = len(last)
            while above and last[above - 1].startswith("#"):
                above -= 1
            blocks.append(last[above:])
            del last[above:]
        blocks[-1].append(line)
    return blocks


def _is_of(block: list[str], data: str) -> bool:
    """Whether a block is a table of `[calibration.DATA]`."""
    header = next(filter(None, map(_HEADER.match, block)), None)
    return header is not None and (_name(header, 1), _name(header, 4)) == ("calibration", data)


def _name(header: re.Match[str], first: int) -> str | None:
    """A key of a header, which is bare or quoted."""
    return header[first] or header[first + 1] or header[first + 2]


def _remainder(block: list[str]) -> list[str]:
    """The comments and blank lines at the end of a block, which may belong to what follows."""
    end = len(block)
    while end and (not block[end - 1].strip() or block[end - 1].lstrip().startswith("#")):
        end -= 1
    return block[end:]


def _refuse_other_changes(before: str, after: str, data: str) -> None:
    """Raise ValueError unless the two texts differ in one calibration only."""
    try:
        tables = [tomllib.loads(text) for text in (before, after)]
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"[calibration.{data}] cannot be written beside what the profile has: {error}") from error
    for table in tables:
        table.setdefault("calibration", {}).pop(data, None)
    if tables[0] != tables[1]:
        raise ValueError(f"the profile writes calibration.{data} in a form that cannot be replaced; remove it by hand")


def write_profile(path: Path, data: str, tables: str) -> None:
    """Put the tables into a profile's file. The file is replaced at once, and only by a profile that loads.

    Raises ValueError for a shipped profile, a missing file, and a result that is no valid profile.
    """
    path = path.resolve()
    if not path.is_file():
        raise ValueError(f"there is no profile {path}; give the path of your own TOML file")
    if path in {shipped.resolve() for shipped in shipped_profiles().values()}:
        raise ValueError(f"{path} is shipped with Contrafact; copy it, and calibrate the copy")
    written = with_tables(path.read_text(encoding="utf-8"), data, tables)
    descriptor, name = tempfile.mkstemp(suffix=".toml", prefix=f".{path.stem}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(written)
        load_profile(name)
        shutil.copymode(path, name)
        Path(name).replace(path)
    except ProfileError as error:
        raise ValueError(f"the profile would not load, and is unchanged: {error}") from error
    finally:
        Path(name).unlink(missing_ok=True)
