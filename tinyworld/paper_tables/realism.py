"""How near generated images and captions are to real ones: kernel distance of image features, perplexity of texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.analysis.effects import Floats, Integers


@dataclass(frozen=True, slots=True)
class KernelDistance:
    """An unbiased estimate (it may be below 0) with its jackknife standard error over `sources` source images."""

    value: float
    error: float
    sources: int


def kernel_distance(
    real: Floats, real_source: Integers, generated: Floats, generated_source: Integers
) -> KernelDistance | None:
    """KID: squared maximum mean discrepancy under the kernel (x·y / width + 1)³ (Bińkowski et al. 2018, 1801.01401).

    `real` and `generated` are images × width, L2-normalised; they are scaled to a mean square of 1, for which the
    kernel is meant, so that x·y / width is their cosine. Counterfactuals are more similar to their own source image and
    their siblings than independent images, so pairs of images of the same source are left out. None for fewer than
    three sources on either side.
    """
    names, numbers = np.unique(np.concatenate([real_source, generated_source]), return_inverse=True)
    if min(len(np.unique(real_source)), len(np.unique(generated_source))) < 3:
        return None
    first, second = numbers[: len(real)], numbers[len(real) :]
    sums, counts = np.zeros((3, len(names))), np.zeros((3, len(names)))
    totals, pairs = np.zeros(3), np.zeros(3)
    sides = ((real, first), (generated, second))
    for place, (left, right) in enumerate(((0, 0), (1, 1), (0, 1))):
        by_source, weights = _between(*sides[left], *sides[right], len(names))
        # A source takes part as either side of a pair; leaving it out takes its row and its column away.
        sums[place], counts[place] = (m.sum(axis=0) + m.sum(axis=1) for m in (by_source, weights))
        totals[place], pairs[place] = by_source.sum(), weights.sum()
    left_out = _distance(totals[:, None] - sums, pairs[:, None] - counts)
    spread = (len(names) - 1) / len(names) * float(((left_out - left_out.mean()) ** 2).sum())
    return KernelDistance(float(_distance(totals, pairs)), math.sqrt(spread), len(names))


def perplexity(log_likelihoods: Floats, tokens: Integers) -> float | None:
    """exp(−Σ log-likelihood / Σ tokens) over all texts; None without texts."""
    return math.exp(-float(log_likelihoods.sum()) / int(tokens.sum())) if len(tokens) else None


def _between(x: Floats, x_source: Integers, y: Floats, y_source: Integers, sources: int) -> tuple[Floats, Floats]:
    """Sums of the kernel, and numbers of pairs, by the sources of both sides (sources × sources, diagonal 0)."""
    kernel = (x @ y.T + 1) ** 3
    rows, columns = np.zeros((sources, len(x))), np.zeros((len(y), sources))
    rows[x_source, np.arange(len(x))] = 1
    columns[np.arange(len(y)), y_source] = 1
    sums, pairs = rows @ kernel @ columns, np.outer(rows.sum(axis=1), columns.sum(axis=0))
    np.fill_diagonal(sums, 0)
    np.fill_diagonal(pairs, 0)
    return sums, pairs


def _distance(totals: Floats, pairs: Floats) -> Floats:
    """Mean kernel within the real, plus within the generated, less twice across; along the first axis."""
    means = totals / pairs
    return np.asarray(means[0] + means[1] - 2 * means[2])
