"""Parameters of a stored job are validated at submission and typed once afterwards."""

from __future__ import annotations

import json

from sqlalchemy.dialects import sqlite

from gateway.database.columns import MethodChoices
from gateway.methods import typed_parameters
from gateway.methods.shifts import Shift, ShiftsParameters
from shared.schemas.jobs import MethodChoice

CHOICE = MethodChoice(name="shifts", parameters={"shifts": [{"phrase": "at dusk", "factor": "weather"}], "steps": 3})


def test_a_choice_survives_its_row() -> None:
    column, dialect = MethodChoices(), sqlite.dialect()
    stored = json.loads(json.dumps(column.process_bind_param([CHOICE], dialect)))
    assert column.process_result_value(stored, dialect) == [CHOICE]


def test_parameters_are_typed_and_equal_choices_are_typed_once() -> None:
    parameters = typed_parameters(CHOICE)
    assert isinstance(parameters, ShiftsParameters)
    assert (parameters.shifts, parameters.steps) == ((Shift(phrase="at dusk", factor="weather"),), 3)
    assert typed_parameters(CHOICE.model_copy()) is parameters
    assert typed_parameters(MethodChoice(name="shifts")) == ShiftsParameters()
