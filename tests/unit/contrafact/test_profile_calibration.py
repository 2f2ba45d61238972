"""`[calibration.DATA]` is written into a profile; all else keeps its text, and a broken file is never written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from contrafact.profile_calibration import calibration_tables, with_tables, write_profile
from shared.profiles.profile import SHIPPED, load_profile
from shared.schemas.calibration import (
    CheckErrorRates,
    ClassErrorRates,
    FittedThresholds,
    JobCalibration,
    MethodCalibration,
)
from shared.schemas.effects import CheckErrors, Rate
from tests.support.small_profile import write_profile as write_small_profile

JOB_THRESHOLDS = {"structure": {"default": 0.2, "weather": 0.15}}
FITTED = {"structure": {"default": 0.31}, "label": {"default": 0.5}}


def rates(factor: str | None, accepted: int, pooled: bool = False) -> CheckErrorRates:
    rate = Rate(count=3, n=30, value=0.1, low=0.03, high=0.26, sources=30)
    errors = CheckErrors(valid=30, valid_accepted=27, invalid=30, invalid_accepted=accepted)
    return CheckErrorRates(
        factor=factor, images=60, rejected_if_valid=rate, accepted_if_invalid=rate, errors=errors, pooled=pooled
    )


def calibration(method: str = "dillema", sweeps: bool = False, scorer: str = "abc") -> JobCalibration:
    return JobCalibration(
        job="j1",
        kind="classification",
        scorer=scorer,
        profile="mine",
        methods=[
            MethodCalibration(
                method=method,
                rendered=90,
                answered=62,
                undecided=2,
                more=25,
                half_width=0.1,
                errors=[rates(None, 9), rates("weather", 7), rates("domain", 9, pooled=True)],
                thresholds=JOB_THRESHOLDS,
                checks_off=["label"],
                separation={},
                fitted=FittedThresholds(thresholds=FITTED, errors=[rates(None, 4), rates("weather", 4)], auroc=0.9),
                sweeps=sweeps,
            )
        ],
    )


def test_the_tables_hold_errors_by_factor_and_the_thresholds_that_they_hold_for() -> None:
    table = tomllib.loads(calibration_tables("our streets", calibration()))["calibration"]["our streets"]
    assert (table["judged_by"], table["scorer"], table["judged"]) == ("people", "abc", 60)
    assert {factor: errors["invalid_accepted"] for factor, errors in table["methods"]["dillema"].items()} == {
        "weather": 7,
        "domain": 9,
    }, "factors without a reviewed image stay unknown: there is no default"
    assert table["thresholds"] == {"dillema": JOB_THRESHOLDS}
    fitted = tomllib.loads(calibration_tables("d", calibration(), "fitted"))["calibration"]["d"]
    assert fitted["thresholds"] == {"dillema": FITTED}
    assert fitted["methods"]["dillema"]["weather"]["invalid_accepted"] == 4
    swept = tomllib.loads(calibration_tables("d", calibration("lance", sweeps=True), "fitted"))["calibration"]["d"]
    assert swept["thresholds"] == {"lance": JOB_THRESHOLDS}
    assert swept["methods"]["lance"]["weather"]["invalid_accepted"] == 7


def test_errors_of_classes_are_written_where_the_sample_allows() -> None:
    few = rates(None, 3).model_copy(update={"errors": None})
    classes = [ClassErrorRates(label=label, **rate.model_dump(exclude={"factor", "pooled"})) for label, rate in (
        ("tow truck", rates(None, 11)), ("bus", few),
    )]  # fmt: skip
    (method,) = calibration().methods
    with_classes = calibration().model_copy(update={"methods": [method.model_copy(update={"classes": classes})]})
    table = tomllib.loads(calibration_tables("d", with_classes))["calibration"]["d"]
    assert set(table["classes"]["dillema"]) == {"tow truck"}
    assert CheckErrors.model_validate(table["classes"]["dillema"]["tow truck"]).invalid_accepted == 11
    assert "classes" not in tomllib.loads(calibration_tables("d", with_classes, "fitted"))["calibration"]["d"]
    assert (
        with_tables(calibration_tables("d", with_classes), "d", calibration_tables("d", calibration())).count(
            "tow truck"
        )
        == 0
    )


def test_several_scorers_or_too_few_reviews_are_refused() -> None:
    with pytest.raises(ValueError, match="scorer"):
        calibration_tables("d", calibration(scorer=""))
    (method,) = calibration().methods
    method = method.model_copy(update={"errors": [rates(None, 9).model_copy(update={"errors": None})]})
    few = calibration().model_copy(update={"methods": [method]})
    with pytest.raises(ValueError, match="10 valid and 10 invalid"):
        calibration_tables("d", few)


PROFILE = """# Ours.
[profile]
name = "mine"   # a comment

# Of the streets.
[calibration.streets]
judged_by = "models"

# not of the calibration

# Of the park.
[calibration.park]
judged_by = "people"
[calibration.streets.methods.lance]
default = { valid = 1, valid_accepted = 1, invalid = 1, invalid_accepted = 0 }
# The end.
"""


def test_only_the_named_calibration_is_replaced() -> None:
    tables = calibration_tables("streets", calibration())
    once = with_tables(PROFILE, "streets", tables)
    parsed, before = tomllib.loads(once), tomllib.loads(PROFILE)
    assert parsed["calibration"]["streets"]["judged"] == 60
    assert parsed["calibration"]["park"] == before["calibration"]["park"]
    assert "lance" not in parsed["calibration"]["streets"]["methods"]
    for comment in (
        "# Ours.",
        "# a comment",
        "# not of the calibration",
        "# Of the streets.",
        "# Of the park.",
        "# The end.",
    ):
        assert once.count(comment) == 1
    assert once.count("# Made by") == 1
    assert once.index("[calibration.streets]") < once.index("# Of the park.") < once.index("[calibration.park]")
    assert with_tables(once, "streets", tables) == once
    added = with_tables(PROFILE, "night", calibration_tables("night", calibration()))
    assert added.startswith(PROFILE.rstrip())
    quoted = with_tables(PROFILE, "a b", calibration_tables("a b", calibration()))
    assert with_tables(quoted, "a b", calibration_tables("a b", calibration())) == quoted


def test_a_table_that_follows_without_a_blank_line_keeps_its_place() -> None:
    tables = calibration_tables("night", calibration())
    text = (
        '[profile]\nname = "mine"\n[calibration.night]\njudged = 1\n[calibration.night.methods]\n[checks]\nmeaning = 0'
    )
    once = with_tables(text, "night", tables)
    assert tomllib.loads(once) == tomllib.loads(text) | tomllib.loads(tables)
    assert with_tables(once, "night", tables) == once


@pytest.mark.parametrize("dotted", ["[calibration]\nstreets.judged = 1\n", "calibration.streets.judged = 1\n"])
def test_a_calibration_in_dotted_keys_is_replaced(dotted: str) -> None:
    tables = calibration_tables("streets", calibration())
    assert tomllib.loads(with_tables(dotted, "streets", tables)) == tomllib.loads(tables)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('calibration = { streets = { judged_by = "people" } }\n', "Inline tables"),
        ('calibration = { park = { judged_by = "people" } }\n', "calibration"),
        ("[calibration.streets\n", "at line 1"),
    ],
)
def test_a_form_that_cannot_be_replaced_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"\[calibration.streets\] cannot be written .*{reason}"):
        with_tables(text, "streets", calibration_tables("streets", calibration()))


def test_a_profile_is_replaced_by_one_that_loads_and_otherwise_unchanged(tmp_path: Path) -> None:
    path = write_small_profile(tmp_path)
    before = path.read_text(encoding="utf-8")
    path.chmod(0o640)
    write_profile(path, "streets", calibration_tables("streets", calibration()))
    measured = load_profile(str(path)).calibration["streets"]
    assert measured.methods["dillema"]["weather"].invalid_accepted == 7
    assert measured.thresholds == {"dillema": JOB_THRESHOLDS}
    assert path.stat().st_mode & 0o777 == 0o640
    assert path.read_text(encoding="utf-8").startswith(before.rstrip())
    written = path.read_text(encoding="utf-8")
    broken = calibration_tables("streets", calibration()).replace("valid = 30", "valid = 3")
    with pytest.raises(ValueError, match="more accepted than measured"):
        write_profile(path, "streets", broken)
    assert path.read_text(encoding="utf-8") == written
    assert [child.name for child in tmp_path.iterdir()] == ["small.toml"]


def test_shipped_and_missing_profiles_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="copy it"):
        write_profile(SHIPPED / "tiny.toml", "streets", "")
    with pytest.raises(ValueError, match="no profile"):
        write_profile(tmp_path / "none.toml", "streets", "")
