"""Counterfactuals as the API shows them, made by hand for what reads them."""

from __future__ import annotations

from shared.schemas.results import (
    ChangeView,
    ClassProbability,
    CounterfactualView,
    ModelOpinion,
    PredictionView,
    SourceImageView,
    VerdictView,
)


def prediction(label: str) -> PredictionView:
    top = [ClassProbability(name=label, probability=0.9)]
    return PredictionView(
        predicted=label, probability=0.9, ground_truth_probability=None, rank=None, top=top, scores={}
    )


def counterfactual_view(
    number: int, *, accepted: bool = True, flipped: bool = False, source: str = "source"
) -> CounterfactualView:
    """A bus by day made a bus at night; its image has the digest `image0`, `image1`, ..."""
    opinion = ModelOpinion(
        model="<model>",
        original=prediction("bus"),
        null_arm=prediction("bus"),
        counterfactual=prediction("truck" if flipped else "bus"),
        flipped=flipped,
    )
    change = ChangeView(factor="weather", from_phrase="day", to_phrase="night", from_value="day", to_value="night")
    return CounterfactualView(
        id=f"cf{number}",
        source=SourceImageView(id="s", position=0, name="a.png", ground_truth="bus", image=source),
        method="dillema",
        ordinal=number,
        seed=0,
        changes=[change],
        caption="",
        new_caption="",
        image=f"image{number}" if accepted else None,
        null_image="null",
        control_image=None,
        verdict=VerdictView(accepted=accepted, check="" if accepted else "label", reason=""),
        scores={},
        kind="classification",
        predictions=[opinion] if accepted else [],
    )
