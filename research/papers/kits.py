"""The experiments as data: methods, models under test by Hub id, class maps, and the numbers that the papers print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from research.papers import dillema_printed, lance_printed
from research.papers.printed import Printed
from shared.schemas.base import Kind
from shared.schemas.jobs import MethodChoice
from shared.schemas.masks import MaskClass, MaskSpec
from shared.schemas.repairs import RecipeName

KitName = Literal["lance", "dillema", "dillema-roads"]
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

    `recipe`: the paper's retraining.
    """

    title: str
    task_description: str
    methods: tuple[MethodChoice, ...]
    models: Mapping[str, str]
    most: int
    departures: tuple[str, ...]
    printed: tuple[Printed, ...]
    kind: Kind = "classification"
    label_map: Mapping[str, str] = field(default_factory=dict)
    masks: MaskSpec | None = None
    recipe: RecipeName | None = None


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
        printed=lance_printed.PRINTED,
        departures=(
            "Models are the Hub's conversions, not the checkpoints that the paper evaluates.",
            "KID, and from 2,048 images on FID, on CLIP features in place of FID on Inception's, whose public weights "
            "are a pickle.",
            "The paper describes 750 originals (4.1), but the shares of Table 2 are those of 576 originals and as many "
            "reconstructions, 387 images of LANCE-R and 781 of LANCE. It does not say which 576: compare *originals, "
            "all*, and the originals of accepted images.",
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
        printed=dillema_printed.IMAGENET,
        recipe="dillema-resnet18",
        departures=(
            "The authors' code draws its source images from the training split; give the validation folder for honest "
            "figures.",
            "The paper asks people about the label alone, as a study does; a review also needs an edit that shows.",
            "Shares of images that always or never fail are of those that a model had right; the paper's are of all.",
            "--repair continues the model's training for --steps; with --recipe it trains as the paper prints, for 90 "
            "epochs by SGD.",
            "The paper does not say whether its +20.19 and +52.27 % are points or relative; from an error of 5.26 % on "
            "the originals (Table I) neither can be. Ours are points.",
            "Edges are canny's; the authors' code uses HED, whose public weights are a pickle.",
        ),
    ),
    "dillema-roads": Kit(
        title="DILLEMA, SHIFT",
        task_description="segment street scenes for a self-driving car",
        methods=(MethodChoice(name="dillema"),),
        models={"dillema-segformer": "nvidia/segformer-b0-finetuned-cityscapes-1024-1024"},
        most=5,
        printed=dillema_printed.ROADS,
        recipe="dillema-deeplabv3",
        departures=(
            "The paper trains its own segmenter on SHIFT; pass yours with --model NAME=FOLDER. SegFormer's licence is "
            "for research only.",
            "The images of a sequence count as one in intervals and tests; the paper counts each.",
            "Figures of classes are shares of their pixels, as in figure 6; the paper does not say of what its 38 and "
            "62 % of pedestrians are.",
            "--repair continues the model's training for --steps; with --recipe it trains as the paper prints, for 200 "
            "epochs by Adam.",
        ),
        kind="segmentation",
        label_map=CITYSCAPES_NAMES,
        masks=SHIFT_MASKS,
    ),
}
