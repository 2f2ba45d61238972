"""What LANCE prints of its results (arXiv 2305.19164, with appendix), and where. Table 6 is profile `paper`'s."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from research.papers.printed import (
    ORIGINALS,
    Printed,
    Reader,
    accepted,
    accuracy,
    accuracy_change,
    answered,
    cannot,
    distance,
    failed,
    perplexity,
    proposed,
)

MODELS = {
    "lance-resnet-50": "ResNet-50",
    "lance-vit-b16": "ViT-B",
    "lance-convnext-b": "ConvNext",
    "lance-clip-b16": "CLIP",
}
TEST_SETS = {ORIGINALS: "original", "reconstruction": "reconstructed", "lance-r": "LANCE-R", "lance": "LANCE"}
TYPES = ("subject", "object", "adjective", "domain", "background")

# acc@1, acc@5 in per cent; then their differences to the originals in points.
_TABLE_2 = {
    "lance-resnet-50": {
        ORIGINALS: ("79.86", "95.83"),
        "reconstruction": ("79.86", "96.18", "+0.0", "+0.4"),
        "lance-r": ("78.81", "92.25", "-1.0", "-3.6"),
        "lance": ("74.01", "92.96", "-5.8", "-2.9"),
    },
    "lance-vit-b16": {
        ORIGINALS: ("85.42", "97.74"),
        "reconstruction": ("85.42", "97.57", "+0.0", "-0.2"),
        "lance-r": ("81.91", "95.61", "-3.5", "-2.1"),
        "lance": ("79.00", "94.24", "-6.4", "-3.5"),
    },
    "lance-convnext-b": {
        ORIGINALS: ("85.42", "98.26"),
        "reconstruction": ("85.24", "98.09", "-0.2", "-0.2"),
        "lance-r": ("85.79", "94.83", "+0.4", "-3.4"),
        "lance": ("81.18", "94.62", "-4.2", "-3.6"),
    },
    "lance-clip-b16": {
        ORIGINALS: ("56.25", "86.98"),
        "reconstruction": ("55.90", "87.67", "-0.4", "+0.7"),
        "lance-r": ("50.13", "83.46", "-6.1", "-3.5"),
        "lance": ("48.27", "84.38", "-8.0", "-2.6"),
    },
}
_FID = {"reconstruction": "13.6", "lance-r": "51.6", "lance": "55.4"}  # figure 4
_PERPLEXITY = {ORIGINALS: "17.1", "reconstruction": "17.5", "lance-r": "18.3", "lance": "18.6"}  # figure 4
_PROPOSED = ("6.2k", "4.8k", "7.1k", "3.4k", "14.1k")  # table 1, of LLaMA-7B's 35k, by TYPES
# Tables 3 and 4, by TYPES, then overall.
_TABLE_3 = {
    "success of caption edits": ("92 %", "84 %", "82 %", "98 %", "92 %", "89 %"),
    "precision of the text filter": ("99.0 %", "100 %", "92.9 %", "100 %", "94.1 %", "97.2 %"),
    "recall of the text filter": ("97.0 %", "96.0 %", "98.9 %", "100 %", "100 %", "98.4 %"),
}
_TABLE_4 = {
    ("realism", "realism, 1 to 5"): ("4.2±0.5", "4.4±0.5", "4.1±0.4", "3.9±0.8", "4.2±0.6", "4.2±0.5"),
    ("edit_success", "edit success, 1 to 5"): ("3.8±0.4", "3.6±0.5", "4.1±0.5", "3.7±0.5", "3.3±0.4", "3.7±0.4"),
    ("fidelity", "fidelity, 1 to 5"): ("4.7±0.4", "4.5±0.5", "4.6±0.5", "4.7±0.2", "4.4±0.5", "4.5±0.4"),
    ("label_kept", "label consistency, %"): ("97.0±4.0", "94.0±6.0", "99.0±0", "93.0±9.0", "93.0±9.0", "95.0±4.0"),
    ("ethics", "ethical issues, %"): ("3.0±7.0", "1.0±3.0", "5.0±8.0", "0±0", "0±0", "2.0±2.6"),
}

BY_HAND = cannot("labels by hand: `contrafact study captions JOB --labels FILE` prints them")


def _table_2(model: str, method: str, figures: tuple[str, ...]) -> list[Printed]:
    what = f"{MODELS[model]}, {TEST_SETS[method]}"
    levels = [
        Printed("Table 2", f"{what}, acc@{k}", f"{share} %", accuracy(model, method, k))
        for k, share in zip((1, 5), figures, strict=False)
    ]
    changes = [
        Printed("Table 2", f"{what}, Δacc@{k}", change, accuracy_change(model, method, k))
        for k, change in zip((1, 5), figures[2:], strict=False)
    ]
    return [*levels, *changes]


def _by_type(where: str, what: str, figures: tuple[str, ...], reader_of: Callable[[str], Reader]) -> list[Printed]:
    types = zip(TYPES, figures, strict=False)
    return [Printed(where, f"{what}, {factor}", figure, reader_of(factor)) for factor, figure in types]


PRINTED: tuple[Printed, ...] = (
    *(
        number
        for model, test_sets in _TABLE_2.items()
        for method, figures in test_sets.items()
        for number in _table_2(model, method, figures)
    ),
    *(Printed("Figure 4", f"FID, {TEST_SETS[method]}", fid, distance(method)) for method, fid in _FID.items()),
    Printed("Figure 4", "perplexity, original", _PERPLEXITY[ORIGINALS], perplexity("lance", edited=False)),
    Printed(
        "Figure 4",
        "perplexity, reconstructed",
        _PERPLEXITY["reconstruction"],
        cannot("a reconstruction keeps its caption"),
    ),
    *(
        Printed("Figure 4", f"perplexity, {TEST_SETS[method]}", _PERPLEXITY[method], perplexity(method, edited=True))
        for method in ("lance-r", "lance")
    ),
    *(
        Printed("Table 1", f"edits of captions, {factor}", count, proposed("lance", factor))
        for factor, count in zip(TYPES, _PROPOSED, strict=True)
    ),
    Printed("Section 4.2", "counterfactuals of 750 images", "781", accepted("lance")),
    Printed("Section 4.2", "of these left out by hand", "8", failed("lance")),
    *(
        number
        for what, figures in _TABLE_3.items()
        for number in [
            *_by_type("Table 3", what, figures[:5], lambda factor: BY_HAND),
            Printed("Table 3", f"{what}, overall", figures[5], BY_HAND),
        ]
    ),
    *(
        number
        for (question, what), figures in _TABLE_4.items()
        for number in [
            Printed("Table 4", f"{what}, overall", figures[5], answered(question, "lance")),
            *_by_type("Table 4", what, figures[:5], partial(answered, question, "lance")),
        ]
    ),
)
