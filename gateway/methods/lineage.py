"""The lineage of a counterfactual: how it was made, for people and for replay. No decision in the code depends on it.

Values that the code needs are fields of `MethodCounterfactual`. The worker stores its caption, control image and cost
in the same JSON column.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

from pydantic import JsonValue


class Exchange(TypedDict):
    """A question to the language model and its reply ("" if there is none); `messages` have role and content.

    `attempts`: of the service at this request. `asked`: requests in all, if an earlier one got no valid reply.
    """

    question: str
    messages: list[dict[str, str]]
    reply: str
    temperature: float
    seed: int
    attempts: NotRequired[int]
    asked: NotRequired[int]


class TriedFraction(TypedDict):
    """One attempt of a sweep: its self-attention fraction, the check that refused it ("" if none), and its scores."""

    self_fraction: float
    check: str
    reason: str
    scores: dict[str, float]


class RegionOutcomeRecord(TypedDict):
    """The scores of one protected region (`judge_regions`); `box` is left, top, right and bottom."""

    label: str
    share: float
    box: list[int]
    iou: float
    seam: float
    light: float | None


class DoseRecord(TypedDict):
    """The dosed parameter and its value; `dose` is relative to the other job's (1), whose edit may be undone."""

    parameter: str
    dose: float
    value: float
    undone: bool


class Lineage(TypedDict, total=False):
    """What a method records. `Inputs.lineage` fills the first four; the others depend on the method."""

    method: str
    revision: str
    parameters: dict[str, JsonValue]
    skipped_checks: list[str]
    exchanges: list[Exchange]
    instruction: str
    rendering: dict[str, JsonValue] | None
    self_fraction: float
    sweep: list[TriedFraction]
    protected: list[RegionOutcomeRecord]
    dose: DoseRecord
