"""Writes `[calibration.DATA]` of a profile's TOML file. All other tables keep their text and their comments."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Comment, Item, Key, Table, Whitespace

from shared.profiles.profile import ProfileError, load_profile, shipped_profiles
from shared.schemas.base import DEFAULT_KIND
from shared.schemas.calibration import (
    CheckErrorRates,
    ClassErrorRates,
    FittedThresholds,
    FittedValidity,
    JobCalibration,
    MethodCalibration,
)
from shared.schemas.effects import CheckErrors, Judges
from shared.schemas.validity import ValidityModel
from shared.words.wording import limits, percent

_NOTE = "Made by `contrafact calibrate {}`. They hold for these thresholds and this scorer, on similar images."

Choice = Literal["job", "fitted", "validity"]  # whose thresholds, and with them whose errors
Chosen = MethodCalibration | FittedThresholds | FittedValidity


def calibration_tables(
    data: str, calibration: JobCalibration, choice: Choice = "job", *, judged_by: Judges = "people", note: str = _NOTE
) -> str:
    """The tables of `[calibration.DATA]`, for the methods with enough reviews, with their models of validity.

    `choice`: `fitted` writes the thresholds fitted on the sample with their held-out errors, for methods that do not
    sweep. `validity` writes the check of that name with its errors, for methods with a model. Otherwise, and for other
    methods, the job's thresholds and their errors are written. Raises ValueError if no method has enough reviews, or if
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
    table = tomlkit.table()
    for line in note.format(calibration.job).splitlines():
        table.add(tomlkit.comment(line))
    table["judged_by"], table["scorer"] = judged_by, calibration.scorer
    table["judged"] = sum(method.answered - method.undecided for method, _ in methods)
    if calibration.kind != DEFAULT_KIND:
        table["kind"] = calibration.kind
    for method, chosen in methods:
        _add_tables(table, method, chosen)
    return _text(data, table)


def _text(data: str, table: Table) -> str:
    """The text of `[calibration.DATA]`."""
    document, calibrations = tomlkit.document(), tomlkit.table(is_super_table=True)
    calibrations[data] = table
    document["calibration"] = calibrations
    return tomlkit.dumps(document)


def _add_tables(table: Table, method: MethodCalibration, chosen: Chosen) -> None:
    """Add the errors of a method, by factor and class, and the thresholds and the model that they hold for.

    Factors that the sample lacks have no table, not even `default`, and neither have classes with too few images.
    """
    name = method.method
    for rates in chosen.errors:
        if rates.errors is not None and rates.factor is not None:
            _sub_table(table, "methods", name)[rates.factor] = _count_table(_factor_comment(rates), rates.errors)
    for of_class in chosen.classes:
        if of_class.errors is not None:
            _sub_table(table, "classes", name)[of_class.label] = _count_table(_rate_comment(of_class), of_class.errors)
    # Checks that a method's thresholds lack stay off.
    _sub_table(table, "thresholds")[name] = _inline_tables(chosen.thresholds)
    if method.validity is not None:
        _sub_table(table, "validity_model")[name] = _model_table(method.validity.model)


def _sub_table(table: Table, *names: str) -> Table:
    """The table of that name inside of a table; without a header of its own, as it has tables only."""
    for name in names:
        inner = table.setdefault(name, tomlkit.table(is_super_table=True))
        assert isinstance(inner, Table)
        table = inner
    return table


def chosen_errors(method: MethodCalibration, choice: Choice) -> Chosen:
    """The errors of a method with the thresholds that they hold for: of the choice if it has them, else of the job."""
    if choice == "validity" and method.validity is not None:
        return method.validity
    if choice == "fitted" and method.fitted is not None and not method.sweeps:
        return method.fitted
    return method


def _model_table(model: ValidityModel) -> Table:
    """A model of validity."""
    values = model.model_dump(mode="json")
    table = tomlkit.table()
    table.add(tomlkit.comment(f"fitted on {model.images} images, {model.valid} of them valid"))
    table.update({name: values[name] for name in ("intercept", "images", "valid")})
    inline = {name: values[name] for name in ("auroc", "auroc_of_scores")}
    inline |= {name: values[name] for name in ("factors", "values", "classes") if values[name]}
    table.update(_inline_tables(inline))
    table["signals"] = _inline_tables(values["signals"])
    return table


def _inline_tables(tables: Mapping[str, Mapping[str, float]]) -> Table:
    """A table of inline tables: `structure = {default = 0.2, weather = 0.15}`."""
    table = tomlkit.table()
    for name, values in tables.items():
        table[name] = tomlkit.inline_table()
        table[name].update(values)
    return table


def _count_table(comment: str, errors: CheckErrors) -> Table:
    table = tomlkit.table()
    table.add(tomlkit.comment(comment))
    table.update(errors.model_dump())
    return table


def _factor_comment(rates: CheckErrorRates) -> str:
    if rates.pooled:
        return f"{rates.images} images of this factor, too few: the errors over all factors"
    return _rate_comment(rates)


def _rate_comment(rates: CheckErrorRates | ClassErrorRates) -> str:
    refused, accepted = rates.rejected_if_valid, rates.accepted_if_invalid
    return (
        f"of {refused.n} valid images {percent(refused.value)} are refused ({limits(refused)}), "
        f"of {accepted.n} invalid ones {percent(accepted.value)} accepted ({limits(accepted)})"
    )


def with_tables(text: str, data: str, tables: str) -> str:
    """A profile's text with `tables` in place of its `[calibration.DATA]`, or at its end.

    Comments above the table and at its end stay; those inside are replaced. Raises ValueError if the text is not TOML
    or defines the calibration in a form that cannot be replaced, such as an inline table.
    """
    try:
        profile, new = tomlkit.parse(text), tomlkit.parse(tables)["calibration"][data]
        expected = profile.unwrap()
        present = data in expected.setdefault("calibration", {})
        expected["calibration"][data] = new.unwrap()
        if present:
            for item in _closing_comments(profile.body, ("calibration", data)):
                _last_table(new).add(item)
            profile["calibration"][data] = new
        written = tomlkit.dumps(profile) if present else f"{text.rstrip()}\n\n{tables}"
        if tomlkit.parse(written).unwrap() != expected:
            raise ValueError("its form cannot be replaced; remove it by hand")
    except (TOMLKitError, TypeError, ValueError) as error:
        raise ValueError(f"[calibration.{data}] cannot be written beside what the profile has: {error}") from error
    return written


Body = list[tuple[Key | None, Item]]


def _closing_comments(body: Body, names: Sequence[str]) -> Iterator[Comment | Whitespace]:
    """The comments and blank lines at the end of a table, each time that it is opened; they may belong to what follows.

    `names` lead from `body` to the table.
    """
    for key, item in body:
        if key is None or key.key != names[0] or not isinstance(item, Table):
            continue
        if names[1:]:
            yield from _closing_comments(item.value.body, names[1:])
            continue
        closing: list[Comment | Whitespace] = []
        for _, value in reversed(_last_table(item).value.body):
            if not isinstance(value, Comment | Whitespace):
                break
            closing.append(value)
        yield from reversed(closing)


def _last_table(table: Table) -> Table:
    """The last of a table's tables, or itself if it has none."""
    inner = [item for _, item in table.value.body if isinstance(item, Table)]
    return _last_table(inner[-1]) if inner else table


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
