"""What DILLEMA prints of its results (arXiv 2502.04378), and where."""

from __future__ import annotations

from research.papers.printed import (
    ORIGINALS,
    Printed,
    Reader,
    all_or_none,
    answered,
    class_change,
    class_found,
    error,
    hours,
    mean_error,
    retrained_accuracy,
    retrained_class,
    retrained_overlap,
    usable_answers,
    valid_error,
    valid_of_flipped,
)

METHOD = "dillema"
RESNETS = {"dillema-resnet-18": "ResNet18", "dillema-resnet-50": "ResNet50", "dillema-resnet-152": "ResNet152"}
_TABLE_I = {  # error in per cent, on the original test suite and on DILLEMA's
    "dillema-resnet-18": ("5.26", "53.29"),
    "dillema-resnet-50": ("2.55", "45.47"),
    "dillema-resnet-152": ("1.47", "42.33"),
}
_FIGURE_5 = {  # element of a study: what, share kept, questions, discarded without consensus
    "road": ("roads kept", "98.9 %", 100, 7),
    "vehicle": ("vehicles kept", "100.0 %", 25, 1),
    "pedestrian": ("pedestrians kept", "84.6 %", 15, 2),
}
_FIGURE_6 = {"sidewalk": ("97 %", "38 %"), "road": ("99 %", "90 %"), "vehicle": ("97 %", "87 %")}


def _kept(element: str) -> Reader:
    return answered("label_kept", METHOD, element=element)


IMAGENET: tuple[Printed, ...] = (
    *(
        Printed("Table I", f"{RESNETS[model]}, error, {name}", f"{share} %", error(model, method))
        for model, shares in _TABLE_I.items()
        for (name, method), share in zip((("originals", ORIGINALS), ("DILLEMA", METHOD)), shares, strict=True)
    ),
    Printed("III-C", "mean error, originals", "3.1 %", mean_error(tuple(RESNETS), ORIGINALS)),
    Printed("III-C", "mean error, DILLEMA", "47.0 %", mean_error(tuple(RESNETS), METHOD)),
    Printed("III-C", "… of valid failures", "38.9 %", valid_error(tuple(RESNETS), METHOD, "dillema-resnet-18")),
    Printed("III-C", "images that always fail, of 5", "33.29 %", all_or_none(METHOD, fail=True)),
    Printed("III-C", "images that never fail, of 5", "24.85 %", all_or_none(METHOD, fail=False)),
    Printed("Figure 4", "labels kept (300 images)", "99.7 %", answered("label_kept", METHOD)),
    Printed(
        "Figure 4",
        "labels kept where ResNet18 fails (100 images)",
        "82.7 %",
        valid_of_flipped(METHOD, "dillema-resnet-18"),
    ),
    Printed("III-B", "usable answers, both data sets", "2,380 of 2,500", usable_answers),
    Printed(
        "III-D",
        "ResNet18 retrained, originals",
        "+20.19 %",
        retrained_accuracy("dillema-resnet-18", "originals"),
    ),
    Printed(
        "III-D",
        "ResNet18 retrained, counterfactuals",
        "+52.27 %",
        retrained_accuracy("dillema-resnet-18", "counterfactuals"),
    ),
    Printed("III-A", "GPU hours (A10G) for 125,000 images", "96", hours(METHOD)),
)

ROADS: tuple[Printed, ...] = (
    *(
        Printed("Figure 5", f"{what} ({asked} questions, {lost} discarded)", share, _kept(element))
        for element, (what, share, asked, lost) in _FIGURE_5.items()
    ),
    *(
        Printed("Figure 6", f"{name}, right, {of}", share, class_found(METHOD, name, originals=of == "originals"))
        for name, shares in _FIGURE_6.items()
        for of, share in zip(("originals", "DILLEMA"), shares, strict=True)
    ),
    Printed("III-C", "pedestrian, right, points", "-34", class_change(METHOD, "pedestrian")),
    Printed("III-D", "mIoU, retrained, originals", "85.32 → 88.76 %", retrained_overlap("originals")),
    Printed("III-D", "mIoU, retrained, counterfactuals", "72.45 → 80.32 %", retrained_overlap("counterfactuals")),
    Printed(
        "III-D", "pedestrian, retrained, counterfactuals", "38 → 62 %", retrained_class("counterfactuals", "pedestrian")
    ),
    Printed("III-A", "GPU hours (A10G) for 10,000 images", "24", hours(METHOD)),
)
