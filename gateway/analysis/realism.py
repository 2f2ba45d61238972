"""How near generated images and captions are to real ones: kernel distance of image features, perplexity of texts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.analysis.certainty import LEVEL
from gateway.analysis.effects import Floats, Integers
from shared.schemas.effects import Estimate

RESAMPLES = 1_000


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
    by_source = _by_source(real, real_source, generated, generated_source)
    if by_source is None:
        return None
    sums, counts = by_source
    # A source takes part as either side of a pair; leaving it out takes its row and its column away.
    remaining, pairs = (m.sum(axis=(1, 2))[:, None] - m.sum(axis=1) - m.sum(axis=2) for m in by_source)
    left_out, sources = _distance(remaining, pairs), sums.shape[1]
    spread = (sources - 1) / sources * float(((left_out - left_out.mean()) ** 2).sum())
    value = float(_distance(sums.sum(axis=(1, 2)), counts.sum(axis=(1, 2))))
    return KernelDistance(value, math.sqrt(spread), sources)


def kernel_estimate(
    real: Floats, real_group: Integers, generated: Floats, generated_group: Integers, seed: int
) -> Estimate | None:
    """`kernel_distance` with its 95 % bootstrap interval over groups of source images, drawn with replacement.

    As in `kernel_distance`, pairs of the same group are left out; so are pairs of a group with its own copy in a draw.
    """
    by_group = _by_source(real, real_group, generated, generated_group)
    if by_group is None:
        return None
    sums, counts = by_group
    groups = sums.shape[1]
    draws = np.random.default_rng(seed).multinomial(groups, np.full(groups, 1 / groups), RESAMPLES).astype(float)
    totals, pairs = (np.stack([((draws @ m) * draws).sum(axis=1) for m in matrices]) for matrices in by_group)
    resampled = _distance(totals, pairs)
    low, high = np.quantile(resampled[np.isfinite(resampled)], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    value = float(_distance(sums.sum(axis=(1, 2)), counts.sum(axis=(1, 2))))
    return Estimate(value=value, low=float(low), high=float(high))


def frechet_distance(real: Floats, generated: Floats) -> float:
    """FID (Heusel et al. 2017): |μ₁ − μ₂|² + Tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½), from the means and covariances of both sides.

    `real` and `generated` are images × width, L2-normalised, and scaled as in `kernel_distance`. It is biased, upwards,
    by about width / images of the variance, so both sides need far more images than the features have dimensions.
    """
    shift = real.mean(axis=0) - generated.mean(axis=0)
    first, second = (np.atleast_2d(np.cov(side, rowvar=False)) for side in (real, generated))
    root = _square_root(first)
    shared = np.sqrt(np.clip(np.linalg.eigvalsh(root @ second @ root), 0, None)).sum()
    distance = shift @ shift + np.trace(first) + np.trace(second) - 2 * shared
    return float(real.shape[1] * max(0.0, distance))


def _square_root(covariance: Floats) -> Floats:
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray((vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T)


def perplexity(log_likelihoods: Floats, tokens: Integers) -> float | None:
    """exp(−Σ log-likelihood / Σ tokens) over all texts; None without texts."""
    return math.exp(-float(log_likelihoods.sum()) / int(tokens.sum())) if len(tokens) else None


def _by_source(
    real: Floats, real_source: Integers, generated: Floats, generated_source: Integers
) -> tuple[Floats, Floats] | None:
    """Sums of the kernel, and numbers of pairs: 3 (real, generated, across) × sources × sources.

    None for fewer than three sources on either side.
    """
    names, numbers = np.unique(np.concatenate([real_source, generated_source]), return_inverse=True)
    if min(len(np.unique(real_source)), len(np.unique(generated_source))) < 3:
        return None
    sides = ((real, numbers[: len(real)]), (generated, numbers[len(real) :]))
    tables = [_between(*sides[left], *sides[right], len(names)) for left, right in ((0, 0), (1, 1), (0, 1))]
    return np.stack([sums for sums, _ in tables]), np.stack([pairs for _, pairs in tables])


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
    with np.errstate(invalid="ignore"):  # a draw of one group alone has no pairs
        means = totals / pairs
    return np.asarray(means[0] + means[1] - 2 * means[2])
