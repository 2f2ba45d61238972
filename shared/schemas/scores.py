"""Scores of a prediction by label, 0 to 1: right or wrong, IoU, recall. Several labels have their mean besides."""

from __future__ import annotations

from collections.abc import Mapping

from shared.schemas.masks import ALL_CLASSES

HELD = 0.5  # least score with which a label is right, detected, found


def with_mean(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores by label, and their mean under `ALL_CLASSES`; empty if there are none."""
    return {**scores, ALL_CLASSES: sum(scores.values()) / len(scores)} if scores else {}


def whole(scores: Mapping[str, float]) -> float:
    """The score of a whole image: the mean over its labels, or that of its only label."""
    return scores[ALL_CLASSES] if ALL_CLASSES in scores else next(iter(scores.values()))


def labels_of(scores: Mapping[str, float]) -> list[str]:
    """The labels, with the mean over them at the end: databases keep their own order."""
    return sorted(scores, key=lambda label: label == ALL_CLASSES)


def lost_labels(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """The labels that hold before but not after."""
    return [name for name, score in before.items() if name != ALL_CLASSES and score >= HELD > after.get(name, 0.0)]
