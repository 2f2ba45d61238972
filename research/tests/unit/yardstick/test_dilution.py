"""Where a planted effect is lost, counted over counterfactuals with given predictions."""

from __future__ import annotations

from dataclasses import replace

from research.yardstick.dilution import dilutions
from research.yardstick.plants import Planned, Plant
from shared.schemas.results import (
    ChangeView,
    CounterfactualView,
    ModelOpinion,
    PredictionView,
    SourceImageView,
    VerdictView,
)
from tinyworld.objects.demo import own_distribution
from tinyworld.objects.world import BACKGROUNDS

PLANT = Plant("relabelled", "bus", "time", "night", "truck", BACKGROUNDS[:2])
BUS = replace(own_distribution(0, "demo"), label="bus", background=BACKGROUNDS[0])
SCENES = [BUS, replace(BUS, background=BACKGROUNDS[1]), replace(BUS, background=BACKGROUNDS[5]), BUS]


def view(position: int, ordinal: int, null: str, new: str, to_value: str = "night") -> CounterfactualView:
    """A counterfactual of one source image and what the model says of its null arm and of it."""
    change = ChangeView(factor="weather", from_phrase="by day", to_phrase="x", from_value="day", to_value=to_value)
    source = SourceImageView(id="s", position=position, name="x.png", ground_truth="bus", image="d")
    predictions = [
        PredictionView(predicted=label, probability=1.0, ground_truth_probability=None, rank=None, top=[], scores={})
        for label in (null, new)
    ]
    opinion = ModelOpinion(
        model="m", original=predictions[0], null_arm=predictions[0], counterfactual=predictions[1], flipped=None
    )
    return CounterfactualView(
        id=f"{position}/{ordinal}",
        source=source,
        method="dillema",
        ordinal=ordinal,
        seed=0,
        changes=[change],
        caption="",
        new_caption="",
        image="d",
        null_image="d",
        control_image=None,
        verdict=VerdictView(accepted=True, check="", reason=""),
        scores={},
        kind="classification",
        predictions=[opinion],
    )


class Answering:
    """The only call of a client that is needed, answered from views."""

    def __init__(self, views: list[CounterfactualView]) -> None:
        self.views = views
        self.queries: list[dict[str, str]] = []

    def counterfactuals(self, job: str, filters: dict[str, str]) -> list[CounterfactualView]:
        self.queries.append(filters)
        return self.views


def test_predictions_are_counted_inside_and_outside_the_planted_cell() -> None:
    client = Answering(
        [
            view(0, 0, "bus", "truck"),  # arrived
            view(0, 1, "bus", "bus"),  # lost
            view(1, 0, "bus", "truck"),
            view(2, 0, "truck", "bus"),  # elsewhere: right, where the null arm was not
            view(3, 0, "bus", "truck", to_value="day"),  # only from night: not of the cell
        ]
    )
    (dilution,) = dilutions(client, "job", [Planned("m", 1, (PLANT,)), Planned("clean", 2)], SCENES)  # type: ignore[arg-type]
    assert client.queries == [{"factor": "weather", "value": "night", "verdict": "accepted"}]
    assert (dilution.model, dilution.plant) == ("m", PLANT)
    assert (dilution.covered.count, dilution.covered.n) == (2, 3)
    assert (dilution.arrived.count, dilution.arrived.n) == (2, 3)
    assert (dilution.right.count, dilution.right_before.count, dilution.right.n) == (1, 0, 1)
