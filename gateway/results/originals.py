"""What is said of a classifier that is wrong on its originals, or less often right than one would hope."""

from __future__ import annotations

from gateway.analysis.effects import Originals
from gateway.analysis.limits import LEAST_SOURCES
from gateway.analysis.originals import judge_originals
from gateway.results.classification import JobRows
from shared.schemas.estimates import Rate
from shared.schemas.metrics import ExchangedClass, OriginalsCheck
from shared.seeds import derive_seed

HINT_BELOW = 0.8  # accuracy below which the preprocessing may be wrong
MOST_EXCHANGES = 8  # named in a sentence
_CAUSES = "the order of the classes, the label map, and the preprocessing (rescale, mean and std, channels, size)"


def check_of(rows: JobRows, model: str) -> OriginalsCheck | None:
    """The check of a model of a job; None where nothing can be judged."""
    job = rows.job
    originals = next((pair_rows.originals for (name, _), pair_rows in rows.models.items() if name == model), None)
    if originals is None:
        return None
    if rows.relation == "metamorphic":
        return check_unlabelled(originals)
    return check_originals(originals, len(job.classes), job.seed)


def check_originals(originals: Originals, known: int, seed: int) -> OriginalsCheck | None:
    """The check of a model that knows `known` classes, with its sentence; None without labelled originals."""
    judged = judge_originals(originals, known, derive_seed("originals", seed))
    if judged is None:
        return None
    names = originals.classes
    check = OriginalsCheck(
        right=judged.right,
        chance=judged.chance,
        standing=judged.standing,
        only="" if judged.only is None else names[judged.only],
        order=[ExchangedClass(predicted=names[said], meant=names[meant]) for said, meant in judged.order.items()],
        right_in_order=judged.in_order,
    )
    return check.model_copy(update={"sentence": sentence_of(check)})


def check_unlabelled(originals: Originals) -> OriginalsCheck | None:
    """The check of a model without ground truth that says one class for all of at least 12 originals; else None."""
    predicted = originals.predicted
    if len(predicted) < LEAST_SOURCES or (predicted != predicted[0]).any():
        return None
    only = originals.classes[int(predicted[0])]
    sentence = (
        f"It says `{only}` for each of the {len(predicted)} originals, and without ground truth nothing shows whether "
        "it tells images apart. Submit labels, or images of several classes."
    )
    return OriginalsCheck(standing="open", only=only, sentence=sentence)


def sentence_of(check: OriginalsCheck) -> str:
    """What to say first of such a model; "" if it is sound and right on most originals."""
    assert check.right is not None
    assert check.chance is not None
    right = _share(check.right)
    if check.standing == "unsound":
        return f"Not testable: {_fault(check, right)}"
    if check.standing == "open":
        return (
            f"Not shown to be better than chance ({check.chance:.0%}) on the originals: right on {right}. Check "
            f"{_CAUSES}, or submit more images."
        )
    if check.order:
        return f"Right on {right} of the originals, but {_exchanged(check)}"
    if (check.right.value or 0) < HINT_BELOW:
        return f"Right on {right} of the originals. If you know it to be better, check {_CAUSES}."
    return ""


def _fault(check: OriginalsCheck, right: str) -> str:
    if check.order:
        return f"right on {right} of the originals, because {_exchanged(check)} Then submit again."
    if check.only:
        return (
            f"it says `{check.only}` for each original, whatever its label, and is right on {right}. Check {_CAUSES}."
        )
    return f"right on {right} of the originals, where chance is {check.chance or 0:.0%}. Check {_CAUSES}."


def _exchanged(check: OriginalsCheck) -> str:
    pairs = [f"`{pair.predicted}` for `{pair.meant}`" for pair in check.order[:MOST_EXCHANGES]]
    more = f" and {len(check.order) - MOST_EXCHANGES} more" if len(check.order) > MOST_EXCHANGES else ""
    confirmed = _share(check.right_in_order) if check.right_in_order else ""
    return (
        f"classes are exchanged: it says {', '.join(pairs)}{more}. With these exchanged it is right on {confirmed} of "
        "the images that did not choose the exchange. Correct the order of the classes or the label map."
    )


def _share(rate: Rate) -> str:
    return f"{rate.value or 0:.0%} ({rate.count} of {rate.n})"
