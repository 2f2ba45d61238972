"""Values kept in memory: made once, and those used longest ago are forgotten."""

from __future__ import annotations

from gateway.results.recent import Recent


def test_a_value_is_made_once_while_it_is_in_use() -> None:
    keys: list[str] = []
    recent: Recent[str] = Recent(2)

    def find(key: str) -> str:
        def make() -> str:
            keys.append(key)
            return key.upper()

        return recent.find(key, make)

    assert [find(key) for key in "abab"] == ["A", "B", "A", "B"]
    assert keys == ["a", "b"]
    find("a")
    find("c")  # `b` was used longest ago
    assert [find(key) for key in "ab"] == ["A", "B"]
    assert keys == ["a", "b", "c", "b"]
