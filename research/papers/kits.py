"""The experiments as data: methods, models under test by Hub id, class maps, and the figures that the papers print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from shared.schemas.base import Kind
from shared.schemas.jobs import MethodChoice
from shared.schemas.masks import MaskClass, MaskSpec

KitName = Literal["lance", "dillema", "dillema-roads"]
Published = Mapping[str, Mapping[str, str]]
ZERO_SHOT = "zero-shot:"  # before a Hub id of CLIP weights

# SHIFT's classes by the value of the red channel, with their names in SHIFT and in Cityscapes. Those that SHIFT's
# benchmark does not judge are void.
_SHIFT_CLASSES = {
    1: ("building", "building"),
    2: ("fence", "fence"),
    4: ("pedestrian", "person"),
    5: ("pole", "pole"),
    6: ("road line", "road"),
    7: ("road", "road"),
    8: ("sidewalk", "sidewalk"),
    9: ("vegetation", "vegetation"),
    10: ("vehicle", "car"),
    11: ("wall", "wall"),
    12: ("traffic sign", "traffic sign"),
    13: ("sky", "sky"),
    18: ("traffic light", "traffic light"),
    22: ("terrain", "terrain"),
}
SHIFT_VOID = (0, 3, 14, 15, 16, 17, 19, 20, 21)
SHIFT_MASKS = MaskSpec(
    classes=[
        MaskClass(name=name, index=value, thing=name in ("pedestrian", "vehicle"))
        for value, (name, _) in _SHIFT_CLASSES.items()
    ],
    void=list(SHIFT_VOID),
)
CITYSCAPES_NAMES = dict(_SHIFT_CLASSES.values())


@dataclass(frozen=True, slots=True)
class Kit:
    """One paper's experiment. `models`: names in the job → Hub ids. `most`: source images of a class or sequence.

    `published`: the paper's own figures as it prints them, by the name of their row or column in our tables, then by
    test set or figure (a key of `tables.TEST_SETS`, or as `tables` names it). Figures that were not at hand are left
    out. `also_published`: the others, as a sentence.
    """

    title: str
    task_description: str
    methods: tuple[MethodChoice, ...]
    models: Mapping[str, str]
    most: int
    departures: tuple[str, ...]
    published: Published = field(default_factory=dict)
    also_published: str = ""
    kind: Kind = "classification"
    label_map: Mapping[str, str] = field(default_factory=dict)
    masks: MaskSpec | None = None


KITS: dict[KitName, Kit] = {
    "lance": Kit(
        title="LANCE, Hard ImageNet",
        task_description="classify the main object of the photo",
        methods=tuple(MethodChoice(name=name) for name in ("reconstruction", "lance-r", "lance")),
        models={
            "lance-resnet-50": "microsoft/resnet-50",
            "lance-vit-b16": "google/vit-base-patch16-224",
            "lance-convnext-b": "facebook/convnext-base-224",
            "lance-clip-b16": f"{ZERO_SHOT}openai/clip-vit-base-patch16",
        },
        most=50,
        published={
            "ResNet-50": {
                "originals": "79.86 %",
                "reconstruction": "79.86 %",
                "lance-r": "78.81 %",
                "lance": "74.01 %",
            },
            "FID": {"reconstruction": "13.6", "lance-r": "51.6", "lance": "55.4"},
        },
        departures=(
            "Of the paper's accuracies only ResNet-50's acc@1 was at hand: compare other models with its own table 2.",
            "Models are the Hub's conversions, not the checkpoints that the paper evaluates.",
            "KID on CLIP features in place of FID on Inception features, whose public weights are a pickle.",
        ),
    ),
    "dillema": Kit(
        title="DILLEMA, ImageNet",
        task_description="classify the main object of the photo",
        methods=(MethodChoice(name="dillema"),),
        models={
            "dillema-resnet-18": "microsoft/resnet-18",
            "dillema-resnet-50": "microsoft/resnet-50",
            "dillema-resnet-152": "microsoft/resnet-152",
        },
        most=25,
        published={
            "ResNet-18": {"originals": "5.26 %", "counterfactuals": "53.29 %"},
            "ResNet-50": {"originals": "2.55 %", "counterfactuals": "45.47 %"},
            "ResNet-152": {"originals": "1.47 %", "counterfactuals": "42.33 %"},
            "shares": {
                "all fail": "33.29 %, k = 5",
                "none fails": "24.85 %",
                "valid": "99.7 %",
                "valid, of flipped": "82.7 %",
            },
        },
        also_published="retraining +52.27 points on generated images.",
        departures=(
            "The paper draws its source images from the training split; give the validation folder for honest figures.",
            "The paper's shares of valid images are those whose label is kept; ours also need an edit that shows.",
            "Edges are canny's; the authors' code uses HED, whose public weights are a pickle.",
        ),
    ),
    "dillema-roads": Kit(
        title="DILLEMA, SHIFT",
        task_description="segment street scenes for a self-driving car",
        methods=(MethodChoice(name="dillema"),),
        models={"dillema-segformer": "nvidia/segformer-b0-finetuned-cityscapes-1024-1024"},
        most=5,
        also_published="mIoU 85.32 → 88.76 and 72.45 → 80.32 by retraining, pedestrians found 38 → 62 %.",
        departures=(
            "The paper trains its own segmenter on SHIFT; pass yours with --model NAME=FOLDER. SegFormer's licence is "
            "for research only.",
            "The images of a sequence count as one in intervals and tests; the paper counts each.",
            "The share of pedestrians found is not measured. The share of each class's pixels found is, before and "
            "after retraining; it is another figure.",
        ),
        kind="segmentation",
        label_map=CITYSCAPES_NAMES,
        masks=SHIFT_MASKS,
    ),
}
