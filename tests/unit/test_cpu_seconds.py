"""What a test may cost in CPU seconds."""

from tests.support.cpu_seconds import ALARM, too_dear

KEYSTONE, DEAR, NOISY, CHEAP = "a.py::keystone", "a.py::dear[1]", "a.py::noisy", "a.py::cheap"


def test_a_dear_test_fails_the_run_unless_it_is_a_keystone_or_was_slowed_by_others() -> None:
    costs = {f"{KEYSTONE}[sqlite]": 3 * ALARM, DEAR: 1.2 * ALARM, NOISY: 1.1 * ALARM, CHEAP: 0.9 * ALARM}
    alone = {DEAR: 1.1 * ALARM, NOISY: 0.8 * ALARM}
    assert too_dear(costs, {KEYSTONE}, alone.__getitem__) == [DEAR]
