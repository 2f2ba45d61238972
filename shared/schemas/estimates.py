"""Estimates with their intervals, and figures that accompany an effect: bounds, panels, confirmations, components."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.schemas.base import Contract
from shared.schemas.own_images import ShownMark


class Rate(Contract):
    """`count` of `n` (`value` is their ratio, None for n = 0) with its Wilson 95 % interval.

    `sources`: number of source images that the n come from, if several may share one; the interval accounts for that.
    """

    count: int
    n: int
    value: float | None
    low: float
    high: float
    sources: int | None = None


class MeanOverlap(Contract):
    """A mean IoU in 0 … 1 of `n` images with its 95 % interval; `value` is None for n = 0.

    The `sources` source images that they come from weigh equally.
    """

    value: float | None
    low: float
    high: float
    n: int
    sources: int


class Interval(Contract):
    """A two-sided confidence interval of a mean in −1 … 1; `level` is its coverage (0.95; higher after selection).

    A difference of two effects lies in −2 … 2.
    """

    low: float
    high: float
    level: float
    kind: Literal["bootstrap-t", "betting", "bootstrap", "newcombe", "jackknife"]


class ProbabilityChange(Contract):
    """Mean |Δp(ground truth)| of the accepted edits that change this factor alone (LANCE, figure 3), in 0 … 1.

    Means over the `n` counterfactuals of a source image, then over the `sources` source images. `low` and `high` are
    the 95 % interval over source images (or groups), 0 and 1 with fewer than two. `null`: the same of their null arms.
    """

    factor: str
    n: int
    sources: int
    value: float
    low: float
    high: float
    null: float


class Estimate(Contract):
    """An estimate with its central 95 % interval, such as a share in 0 … 1."""

    value: float
    low: float
    high: float


class ChangedImages(Contract):
    """The images that make a finding: right on the reference arm and lost on the edit (gained, for an improvement).

    `n` are the counted ones of its cell; `reviewed` of them people judged valid or invalid, `valid` of these are valid.
    `sample` has the ids of a random sample of at least 10 (or all), which reviewers see first.
    """

    n: int
    reviewed: int
    valid: int
    sample: list[str]


class Bounds(Contract):
    """The smallest and the largest effect of a cell if refused pairs that may be valid had been counted (−1 … 1).

    `refused`: its rendered edits that the checks refuse. At most a `share` of them may be valid, from the checks'
    errors or from reviews; 1 without either (`source` "none"). `lost`: its accepted edits whose arm is refused. At most
    a `lost_share` of them may be valid; 1 without errors and reviews. Stored results without `lost` have these among
    `refused`. `interval` adds the sampling error: it covers the effect at 95 %, whichever are valid. It is None under
    12 source images (or groups), and in an adaptive design.
    """

    low: float
    high: float
    refused: int
    share: float
    source: Literal["none", "checks", "reviews"]
    lost: int = 0
    lost_share: float = 1.0
    interval: Interval | None = None


class Panel(Contract):
    """How the job's reference models do in the cell of a weakness: those tested in it, and those that fail (Δ < −5).

    `suspect`: all models fail, those under test and the references, so that the images may be broken, not the model.
    """

    references: list[str]
    failing: list[str]
    suspect: bool


class Confirmation(Contract):
    """What a job with an unrelated editor shows for a finding: its effect for the same model in the same cell.

    `confirmed`: its 95 % interval is beyond 5 points in the direction of the finding. Under 12 source images there are
    "too few images", and no interval. `not tested again`: `reason` says why; `job` is then the latest one.
    """

    job: str
    method: str
    verdict: Literal["confirmed", "not confirmed", "too few images", "not tested again"]
    sources: int
    delta_accuracy: float | None = None
    interval: Interval | None = None
    reason: str = ""


ChosenBy = Literal["scorer", "scorer and eye", "eye"]


class OwnImage(Contract):
    """A source image that shows the value of a finding, by the scorer (`probability`, 0 to 1), to be confirmed by eye.

    `correct`: whether the model under test is right on it. `id` is the source image's, `image` its digest. `marked`:
    what most of those who marked it saw; None if nobody did.
    """

    id: str
    image: str
    file_name: str
    probability: float
    correct: bool
    marked: ShownMark | None = None


class OwnImageMarks(Contract):
    """What people saw in the own images of a finding's class, by majority.

    `confirmed` of them show the value, `refused` do not, `undecided` have no majority. The scorer had not chosen
    `missed` of the confirmed ones. `precision`: the share of the scorer's choice that shows the value, of the decided.
    """

    confirmed: int
    refused: int
    undecided: int
    missed: int
    precision: Rate


class Corroboration(Contract):
    """A finding's value in the job's own images of its class: how often the model is right with it and without it.

    The scorer says by zero-shot classification which images show the value and which show one of `others` instead: the
    values that the cell's edits replaced (those that replaced it, for a change *from* the value). `difference` is
    `showing` minus `rest` (the other way round for a change *from* the value), so that a negative one agrees with a
    weakness; it and its 95 % `interval` are None if either sample is empty. The samples may differ in more than the
    value. Unless `chosen_by` is `eye`, the interval is that of the chosen images, not of the value: it does not include
    the errors of the scorer. `images` are those that show it, at most 48, the most probable first. `sampled_of`: how
    many images the class has, if those compared are a random sample of them.

    `chosen_by`: who chose the images that show it. `eye`: people confirmed each. `scorer and eye`: the scorer, except
    for the few that people marked. `marks` (None without any) counts what they saw. `to_mark`: digests of the images to
    mark, in random order: a random 48 of the scorer's choice, and 8 that it nearly chose.
    """

    others: list[str]
    showing: Rate
    rest: Rate
    difference: float | None = None
    interval: Interval | None = None
    images: list[OwnImage]
    sampled_of: int | None = None
    chosen_by: ChosenBy = "scorer"
    marks: OwnImageMarks | None = None
    to_mark: list[str] = Field(default_factory=list)


Purchase = Literal["sources", "edits", "seeds"]


class NextStep(Contract):
    """More sources, edits or seeds; `gain`: the variance that a network evaluation removes, relative to the best."""

    buy: Purchase
    gain: float


class VarianceComponents(Contract):
    """Where the variance of differences in correctness (or IoU) within cells comes from, and what to buy next.

    `source`: between `sources` source images (or groups); `edit`: between the `edits_per_source` edits of a source;
    `seed`: between the `seeds_per_edit` seeds of an edit. None where no source has several edits, or no edit several
    seeds; then the component above contains it. Costs are network evaluations, measured: of one more source image
    without its edits, and of one more rendering. `next` has the best use of the next evaluation first.
    """

    sources: int
    edits_per_source: float
    seeds_per_edit: float
    source: Estimate | None
    edit: Estimate | None
    seed: Estimate | None
    evaluations_per_source: float
    evaluations_per_rendering: float
    next: list[NextStep]


class Realism(Contract):
    """How near the accepted counterfactuals of one method are to the originals, from a sample of `sources` of them.

    One counterfactual of each source image, at most 500, randomly sampled. `kid`: the kernel inception distance
    (Bińkowski et al. 2018) between originals and counterfactuals in the scorer's space, unbiased (so it may be below
    0), with a 95 % bootstrap interval over groups of source images; `kid_null` the same for null arms. None for fewer
    than three groups. `fid`: the Fréchet inception distance (Heusel et al. 2017) in the scorer's space, from 2,048
    source images with an accepted counterfactual; missing with fewer. `fid_null` the same of as many null arms. Neither
    compares with FID on Inception's features. `perplexity` of the captions and of the edited ones
    (`perplexity_edited`), per token, under the profile's language model. `not_measured`: why `images` or `captions`
    were not measured, if a service failed.
    """

    method: str
    sources: int
    kid: Estimate | None = None
    kid_null: Estimate | None = None
    fid: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    fid_null: Annotated[float | None, Field(exclude_if=lambda value: value is None)] = None
    perplexity: float | None = None
    perplexity_edited: float | None = None
    not_measured: dict[Literal["images", "captions"], str] = Field(default_factory=dict)


class FailurePoints(Contract):
    """The severity at which images first fail under one corruption, for images predicted correctly without it.

    `first`: number of images by lowest failing severity (1 to 5); `never`: those that never fail. `median`: the
    severity by which half of the images have failed, None if fewer do.
    """

    corruption: str
    sources: int
    first: list[int]
    never: int
    median: int | None


class EditCluster(Contract):
    """Accepted edits of one class with similar phrases (LANCE, section 4.2), and their effect.

    Clusters are formed without outcomes, from the edits of a random half of the groups (`sources` counts both halves).
    `screened`: the mean effect on that half, −1 … 1. If it is beyond 5 points either way, the cluster is tested on the
    `confirming_sources` of the other half: `delta_accuracy`, its 95 % `interval` and `q_value` (Benjamini-Hochberg over
    the tested clusters of one model and method) are theirs. `phrases`: at most five, nearest to the centre first.
    """

    label: str
    phrases: list[str]
    edits: int
    sources: int
    screened: float
    confirming_sources: int
    delta_accuracy: float | None
    interval: Interval | None
    q_value: float | None
    standing: Literal["weakness", "improvement", "nothing found", "too few images", "not tested"]
