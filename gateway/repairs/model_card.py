"""The model card of a repaired model: data, training, seeds, results, and the original model's licence."""

from __future__ import annotations

from collections import Counter

from shared.repair_tables import arm_table, class_table
from shared.schemas.repairs import ARMS, Arm, RepairOrder, RepairResult, TrainedArm

_TRAINING: dict[Arm, str] = {
    "before": "the model as it was",
    "repaired": "half of every batch original pictures, half accepted counterfactuals of them",
    "originals": "original pictures alone: a control",
    "null": "half of every batch original pictures, half null arms of them: a control",
    "augmented": "original pictures alone, under RandAugment: a control",
}


def model_card(order: RepairOrder, arm: TrainedArm, result: RepairResult) -> str:
    """`README.md` of one arm, in Markdown with the Hub's metadata before it."""
    parameters = order.parameters
    lines = [
        *_metadata(order),
        f"# {order.model}, {'repaired' if arm == 'repaired' else f'control `{arm}`'}",
        "",
        f"`{order.model}` trained further by Contrafact: {_TRAINING[arm]}. The original model's licence applies: "
        f"{order.licence or 'not stated'}.",
        "",
        f"* **Data**: job `{order.job}`; {len(order.originals)} source images ({_ground_truth(order)}), "
        f"{len(order.counterfactuals)} accepted counterfactuals, {len(order.null_arms)} null arms of these. Values not "
        f"trained on: {', '.join(order.values_not_trained_on) or 'none'}.",
        f"* **Training**: {parameters.steps} steps of {parameters.batch_size} images, AdamW, learning rate "
        f"{parameters.learning_rate:g} with a cosine to 0, seed {parameters.seed}; repair `{order.repair}`.",
        f"* **Made with**: {', '.join(f'{name} {number}' for name, number in sorted(result.versions.items()))}.",
        "",
        f"## Results on {result.sources_held_out} source images that it was not trained on",
        "",
        "| images | n of source images | " + " | ".join(ARMS) + " |",
        "|---" * (2 + len(ARMS)) + "|",
        *(f"| {name} | {size} | {' | '.join(rates)} |" for name, size, rates in arm_table(result.sets)),
        "",
        *_by_class(result),
        *(f"* {sentence}" for sentence in result.sentences),
        "",
        "All arms start from the same weights and take the same steps under the same seed.",
        "",
    ]
    return "\n".join(lines)


def _metadata(order: RepairOrder) -> list[str]:
    return [
        "---",
        f"license: {_licence(order.licence)}",
        f"pipeline_tag: image-{order.kind}",
        "library_name: transformers",
        "tags: [contrafact]",
        "---",
        "",
    ]


def _ground_truth(order: RepairOrder) -> str:
    if order.kind == "segmentation":
        return f"masks of {', '.join(order.classes)}"
    counts = Counter(example.label for example in order.originals)
    return ", ".join(f"{label} {count}" for label, count in sorted(counts.items()))


def _by_class(result: RepairResult) -> list[str]:
    rows = class_table(result)
    if not rows:
        return []
    return [
        "The figures above are means over images; IoU of all pixels together:",
        "",
        "| images | class | " + " | ".join(ARMS) + " |",
        "|---" * (2 + len(ARMS)) + "|",
        *(f"| {name} | {label} | {' | '.join(values)} |" for name, label, values in rows),
        "",
    ]


def _licence(licence: str) -> str:
    """The licence as the Hub writes it: lower case; `other` if none is stated."""
    return licence.lower() if licence and licence.replace("-", "").replace(".", "").isalnum() else "other"
