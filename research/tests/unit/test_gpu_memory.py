"""`modern-24gb` fits into 24 GB, by the public configurations of its networks; nothing is fetched."""

from __future__ import annotations

import pytest

from gateway.operations.doctor import gigabytes, needed_weights
from research.gpu.memory import CARD, PROFILE, computed, gigabytes_by_table, stated
from shared.profiles.profile import load_profile

ROOM = 7.0  # GB for four CUDA contexts and for computing: vLLM 2, the generator and the scorer 3


@pytest.mark.slow
def test_the_memory_that_the_profile_states_is_that_of_its_networks() -> None:
    profile = load_profile(PROFILE)
    statements = stated(profile)
    tables = gigabytes_by_table(profile)
    assert tables.keys() == statements.keys()
    for table, sizes in tables.items():
        assert computed(table, sizes) == pytest.approx(statements[table], abs=0.07), table


def test_all_weights_and_the_cache_leave_room_to_compute_on_one_card() -> None:
    profile = load_profile(PROFILE)
    server = profile.caption.server
    assert server
    assert server.cache
    services = sum(gigabytes(weights) for weights in needed_weights(profile).values())
    assert services + server.gigabytes + server.cache.gigabytes + ROOM < CARD
