"""What a job found: the funnel, the effects in cells, the findings and the papers' own metrics."""

from __future__ import annotations

from typing import Literal

from pydantic import JsonValue

from shared.schemas.base import Contract

Direction = Literal["to", "from"]
# labelled: against the ground truth. metamorphic: without one, so the prediction on the source image must not change.
Relation = Literal["labelled", "metamorphic"]
# weakness and improvement are findings; the other two are not.
Standing = Literal["weakness", "improvement", "nothing found", "too few images"]


class Rate(Contract):
    """`count` of `n` (`value` is their ratio, None for n = 0) with its Wilson 95 % interval."""

    count: int
    n: int
    value: float | None
    low: float
    high: float


class Interval(Contract):
    """A two-sided confidence interval of a mean in −1 … 1; `level` is its coverage (0.95; higher after selection)."""

    low: float
    high: float
    level: float
    kind: Literal["bootstrap-t", "betting"]


class Cell(Contract):
    """Class × factor value × direction: the unit of a finding. `label` is a class of the model under test."""

    label: str
    factor: str
    value: str
    direction: Direction


class CellEffect(Contract):
    """What one method's edits of one cell did to one model under test, null arm subtracted, sources weighted equally.

    `delta_accuracy` and `delta_probability` (None where a probability is not known) are in −1 … 1, negative is worse.
    `p_value` is the paired sign-flip test's, `q_value` its Benjamini-Hochberg adjustment over the family; both, and
    the intervals, are None under 12 source images. `selected_interval` is the interval of a rejected cell at the level
    adjusted for selection (FCR). `images_needed` estimates how many source images would settle an effect of this size.
    """

    cell: Cell
    sources: int
    counterfactuals: int
    delta_accuracy: float
    delta_probability: float | None
    interval: Interval | None = None
    selected_interval: Interval | None = None
    p_value: float | None = None
    q_value: float | None = None
    standing: Standing
    images_needed: int | None = None
    sentence: str = ""


class Accuracy(Contract):
    """acc@k: the truth is among the k most probable classes. Every original, null arm and counterfactual counts once.

    `delta` (LANCE eq. 3) is the mean over accepted counterfactuals of (correct@k − its original's correct@k), in
    −1 … 1; `delta_null` the same of their null arms. None without counterfactuals.
    """

    k: int
    originals: Rate
    nulls: Rate
    counterfactuals: Rate
    delta: float | None
    delta_null: float | None


class AllOrNone(Contract):
    """DILLEMA's shares: of source images that the model had right, all or none of the first `k` counterfactuals fail.

    Only source images with at least `k` accepted counterfactuals are counted.
    """

    k: int
    all_fail: Rate
    none_fail: Rate


class PaperMetrics(Contract):
    """The two papers' own figures, for one method and model under test.

    Probabilities are of the ground truth (without one: of the class predicted on the original). `flips` compares
    the prediction with the original's and needs no ground truth; `flips_null` is the same for the null arms.
    """

    accuracy: list[Accuracy]
    error_rate: Rate
    error_rate_null: Rate
    delta_probability: float | None
    mean_absolute_delta_probability: float | None
    mean_absolute_delta_probability_null: float | None
    flips: Rate
    flips_null: Rate
    all_or_none: AllOrNone | None


class ModelResults(Contract):
    """One model under test under one method. `cells` holds every cell, also those with too few images.

    `counterfactuals` are the accepted ones that the figures rest on; `left_out` those without a usable ground truth.
    """

    model: str
    method: str
    relation: Relation
    sources: int
    counterfactuals: int
    left_out: int
    cells: list[CellEffect]
    metrics: PaperMetrics

    @property
    def findings(self) -> list[CellEffect]:
        """Weaknesses first, then improvements, each by strength (`cells` is in this order already)."""
        return [c for c in self.cells if c.standing in ("weakness", "improvement")]


class CheckCount(Contract):
    """How many counterfactuals one check refused."""

    check: str
    count: int


class Funnel(Contract):
    """Where the proposed counterfactuals of one method went: text checks, rendering, image checks, accepted."""

    method: str
    proposed: int
    refused_by_text: list[CheckCount]
    rendered: int
    refused_by_image: list[CheckCount]
    accepted: Rate


class Cost(Contract):
    """What the counterfactuals of one method cost. `evaluations`: network evaluations, null arms included."""

    method: str
    evaluations: int
    evaluations_per_rendered: float | None
    evaluations_per_accepted: float | None


class HowMade(Contract):
    """Everything that the figures depend on."""

    job: str
    task: str
    profile: str
    seed: int
    parameters: dict[str, JsonValue]
    services: dict[str, JsonValue]
    versions: dict[str, str]
    analysis_seed: int


class JobResults(Contract):
    """All that was measured in a job. `provisional`: the automatic checks are not calibrated on the user's own data."""

    sources: int
    sources_failed: int
    provisional: bool
    results: list[ModelResults]
    funnels: list[Funnel]
    costs: list[Cost]
    made: HowMade
