"""Map a model's outputs to named classes; outputs of the same name are one class."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shared.problems import InvalidInput, NotFinite
from shared.schemas.models import Output

NOT_FINITE = "the model answered NaN or infinity; check its weights and its preprocessing"
DEPENDENT = 0.1  # of the range of answers: more than half precision changes
ClassNames = Sequence[str] | Mapping[str, int | Sequence[int]]


class NamedOutputs:
    """Names of a model's outputs; the user's names override the model's. `classes` has each name once, by index."""

    def __init__(
        self, outputs: int, embedded: Sequence[str] | None, declared: ClassNames | None, least: int = 2
    ) -> None:
        """`embedded`: the model's own names by index. `declared`: those of its spec.

        Raises InvalidInput if they do not fit, or are less than `least` classes.
        """
        names = _output_names(outputs, embedded, declared)
        self.classes = list(dict.fromkeys(names))
        if len(self.classes) < least:
            raise InvalidInput("the model has only one class; a test needs at least two")
        column = {name: place for place, name in enumerate(self.classes)}
        self._columns = np.array([column[name] for name in names], np.int64)
        self._outputs = outputs

    def merge(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Images × classes from images × outputs: outputs of one name are summed. NaN stays in its image's row.

        Raises InvalidInput for another number of outputs.
        """
        if probabilities.ndim != 2 or probabilities.shape[1] != self._outputs:
            raise InvalidInput(f"the model returned shape {probabilities.shape} instead of images × {self._outputs}")
        if len(self.classes) == self._outputs:
            return probabilities
        return np.stack([probabilities[:, self._columns == place].sum(1) for place in range(len(self.classes))], axis=1)

    def index_map(self) -> NDArray[np.int64]:
        """Output index → class index."""
        return self._columns


def finite(answers: Iterable[NDArray[Any]]) -> list[NDArray[Any] | NotFinite]:
    """A model's answers, NotFinite in place of those with NaN or infinity."""
    return [answer if np.isfinite(answer).all() else NotFinite(NOT_FINITE) for answer in answers]


def refuse_dependence(alone: NDArray[Any], together: NDArray[Any]) -> None:
    """Raise InvalidInput if the answers to an image, `alone` and beside others, differ by more than rounding."""
    if not (np.isfinite(alone).all() and np.isfinite(together).all()):
        return  # refused elsewhere
    if np.abs(alone - together).max() > DEPENDENT * np.ptp([alone, together]):
        raise InvalidInput(
            "the model gives one image different answers, alone and beside another image in a batch, as BatchNorm and "
            "Dropout do in training; call its eval() before it is exported or tested"
        )


def output_of(rows: NDArray[np.floating], declared: Output | None, last_operator: str) -> Output:
    """What a classifier returns, by its answers to several images (images × outputs) and the end of its graph.

    Raises InvalidInput if `declared` contradicts them, and for a model whose outputs are neither.
    """
    if not np.isfinite(rows).all():  # refused elsewhere
        return declared or "logits"
    if declared not in (None, "logits", "probabilities"):
        raise InvalidInput(f"{declared!r} is the output of a detector; a classifier's is logits or probabilities")
    if rows.shape[1] == 1:
        raise InvalidInput(
            "the model has one output for each image, such as the score of one of two classes; export it with one for "
            "each class, for a probability p for example 1 − p and p"
        )
    if len(rows) > 1 and rows.min() == rows.max():
        raise InvalidInput(
            f"the model answers {rows.min():g} for each class of {len(rows)} different images; check its weights"
        )
    if last_operator == "Sigmoid":
        raise InvalidInput(
            "the model ends in Sigmoid, which scores each class alone; export it without that layer, or with Softmax"
        )
    are_probabilities = rows.min() >= -1e-6 and np.allclose(rows.sum(axis=1), 1, atol=1e-2)
    if last_operator == "Softmax" and not are_probabilities:
        raise InvalidInput(
            "the model ends in Softmax, but its outputs do not sum to 1 over the classes; correct the axis of Softmax, "
            "or export all of its outputs"
        )
    if declared is None and not are_probabilities and (total := _common_sum(rows)) is not None:
        raise InvalidInput(
            f"the outputs of the model sum to {total:.6g} for each of {len(rows)} images, as probabilities with a "
            "factor do; export it without the factor, or set `output` to logits if they are logits"
        )
    if declared == "probabilities" and not are_probabilities:
        raise InvalidInput("the outputs of the model do not sum to 1; set `output` to logits")
    if declared == "logits" and are_probabilities:
        reason = "it ends in Softmax" if last_operator == "Softmax" else f"they sum to 1 for {len(rows)} images"
        raise InvalidInput(
            f"the outputs of the model are probabilities, not logits ({reason}); set `output` to probabilities"
        )
    return "probabilities" if are_probabilities else "logits"


def _common_sum(rows: NDArray[np.floating]) -> float | None:
    """The sum of each row if rows that differ have the same one, and nothing is negative; else None."""
    total = float(rows.sum(axis=1).mean())
    differ = len(rows) > 1 and np.ptp(rows, axis=0).max() > 1e-2 * total
    same = rows.min() >= 0 and np.allclose(rows.sum(axis=1), total, rtol=1e-4, atol=0)
    return total if differ and same else None


def softmax(logits: NDArray[np.floating]) -> NDArray[np.float64]:
    """Softmax of each row, in double precision."""
    return np.asarray(torch.from_numpy(logits.astype(np.float64)).softmax(dim=1).numpy())


def refuse_other_order(own: Sequence[str] | None, declared: Sequence[str] | None, remedy: str) -> None:
    """Raise InvalidInput, with the remedy, if `declared` are the names of a model's `own` outputs in another order."""
    if own and declared and list(own) != list(declared) and set(own) == set(declared):
        raise InvalidInput(
            f"`classes` names the model's own classes in another order than it does; leave `classes` out, or {remedy}"
        )


def _output_names(outputs: int, model_names: Sequence[str] | None, user_names: ClassNames | None) -> list[str]:
    if model_names is not None and len(model_names) != outputs:
        raise InvalidInput(
            f"the model has {outputs} outputs and names {len(model_names)} of them; correct its id2label"
        )
    if user_names is None:
        if model_names is None:
            raise InvalidInput(f"the model has {outputs} outputs without names; give `classes`, a list in their order")
        return list(model_names)
    if not isinstance(user_names, Mapping):
        if len(user_names) != outputs:
            raise InvalidInput(
                f"the model has {outputs} outputs, but `classes` names {len(user_names)}; name each once, in order"
            )
        remedy = 'correct the id2label in its files; {"name": index} renames single outputs'
        refuse_other_order(model_names, user_names, remedy)
        return list(user_names)
    names = list(model_names) if model_names is not None else [f"output {index}" for index in range(outputs)]
    name_of_index: dict[int, str] = {}
    for name, places in user_names.items():
        for index in [places] if isinstance(places, int) else places:
            if index >= outputs:
                raise InvalidInput(f"`classes` gives {name!r} index {index}; the model has outputs 0 to {outputs - 1}")
            if index in name_of_index:
                raise InvalidInput(
                    f"`classes` gives index {index} to both {name_of_index[index]!r} and {name!r}; choose one"
                )
            name_of_index[index] = name
            names[index] = name
    return names
