"""What is known of a service's loading: names, sizes, what belongs to what."""

from __future__ import annotations

import pytest

from shared.profiles.profile import load_profile, shipped_profiles
from shared.profiles.weights import Section, Weights
from shared.service.load_progress import WAITING, WARM_UP, LoadProgress, expect, preparing, reading, sets_of_weights


class Pair(Section):
    """Two sets."""

    base: Weights
    lora: Weights


PAIR = Pair(
    base=Weights(hub="a/base", revision="1", licence="none", gigabytes=3),
    lora=Weights(hub="a/lora", revision="1", licence="none", gigabytes=1),
)


@pytest.mark.parametrize("profile", shipped_profiles())
def test_every_set_of_a_service_is_known_by_its_table(profile: str) -> None:
    names = dict(sets_of_weights(load_profile(profile).diffusion))
    assert {"base", "controlnets.canny"} <= set(names)
    for name, weights in names.items():
        assert weights.gigabytes > 0, name


def test_sets_read_while_another_is_read_belong_to_it() -> None:
    progress = LoadProgress()
    assert progress.state().loading == WAITING
    with progress.receiving():
        expect(PAIR)
        with reading(PAIR.lora), reading(PAIR.base):
            assert progress.state().loading == "lora (a/lora)"
        assert (progress.state().gigabytes_loaded, progress.state().gigabytes_total) == (1, 4)
        with pytest.raises(OSError, match="no such file"), reading(PAIR.base):
            raise OSError("no such file")
        with preparing("a first rendering"):
            assert progress.state().sentence.endswith("; now a first rendering")
    assert progress.state().loading == WARM_UP


def test_loaders_outside_of_a_service_report_to_nobody() -> None:
    expect(PAIR)
    with reading(PAIR.base), preparing("a first rendering"):
        pass
