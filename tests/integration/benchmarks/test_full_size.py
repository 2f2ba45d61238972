"""Prices of forward passes on small random weights, the cost of a loop, and the layout at full size."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from diffusers import ControlNetModel

from benchmarks import cost_weights
from benchmarks.cost_arms import Arm
from benchmarks.cost_meter import Meter, Pass, Spent
from benchmarks.cost_pipelines import PUBLISHED_CODE
from benchmarks.cost_weights import Shape
from benchmarks.full_size import SIBLINGS, Kind, Prices, full_size_table, measure_prices
from tests.support.small_costs import SMALL


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # UniPC on a numpy above 2.0
def test_every_pass_of_the_loops_is_measured() -> None:
    torch.set_num_threads(1)
    prices = measure_prices(SMALL, PUBLISHED_CODE)
    rows = {kind: set(sizes) for kind, sizes in prices.seconds.items()}
    assert rows == {
        Kind("text encoder 0"): {1},
        Kind("unet"): {1, 2, SIBLINGS},
        Kind("controlnet"): {2, SIBLINGS},
        Kind("decoder"): {1},
        Kind("encoder"): {1},
        Kind("unet", trained=True): {1},
    }
    assert prices.pipeline_step > 0
    assert prices.pipeline_passes() > 0


def test_a_loop_costs_its_passes_at_the_nearest_size_measured() -> None:
    prices = Prices()
    prices.seconds[Kind("unet")] = {1: 10.0, 4: 32.0}
    prices.seconds[Kind("unet", trained=True)] = {1: 50.0}

    def single(network: str, rows: int, trained: bool = False) -> Pass:
        return Pass(network, ((rows, 4, 64, 64),), False, trained)

    assert prices.of(single("unet", 1)) == 10
    assert prices.of(single("unet, few steps", 3)) == 24
    assert prices.of(single("unet", 9)) == 72
    assert prices.of(single("segmenter", 1)) is None
    passes = Counter({single("unet", 1): 3, single("unet", 1, trained=True): 2, single("segmenter", 1): 7})
    assert prices.loop(Spent(passes)) == 130


def test_an_arm_without_a_good_counterfactual_is_named() -> None:
    prices = Prices()
    for name in ("unet", "controlnet", "decoder", "text encoder 0"):
        prices.seconds[Kind(name)] = {1: 1.0, 2: 2.0}
    spent = Spent(Counter({Pass("unet", ((1, 4, 64, 64),), False, False): 4}))
    papers, ours = (
        Arm(name, "dillema", name == "papers", "", (), Meter({}), lambda _: [], spent, produced=2, good=good)
        for name, good in (("papers", 1), ("ours", 0))
    )
    ratio = full_size_table(prices, [papers, ours])[-1]
    assert "1.0 ×" in ratio
    assert "0 of 2 good by ours" in ratio


def test_the_full_size_is_that_of_stable_diffusion_1_5() -> None:
    with torch.device("meta"):
        unet = cost_weights.unet_of(Shape())
        control = ControlNetModel.from_unet(
            unet, conditioning_embedding_out_channels=Shape().hint, load_weights_from_unet=False
        )
    assert sum(weight.numel() for weight in unet.parameters()) == 859_520_964
    assert sum(weight.numel() for weight in control.parameters()) == 361_279_120
