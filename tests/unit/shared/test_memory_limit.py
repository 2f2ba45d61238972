"""The memory that a container may use, and what an uploaded model may take of it."""

from pathlib import Path

import pytest

from evaluator_service.models_under_test.messages import MEMORY_MIB, default_memory_mib
from shared.service.memory_limit import container_memory


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
@pytest.mark.parametrize(
    ("content", "limit"),
    [("4294967296\n", 4 * 2**30), ("max\n", None), ("9223372036854771712\n", None), ("-1\n", None)],
)
def test_the_limit_is_the_containers(tmp_path: Path, name: str, content: str, limit: int | None) -> None:
    assert container_memory(tmp_path) is None
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    assert container_memory(tmp_path) == limit


@pytest.mark.parametrize(
    ("device", "container_bytes", "mib"),
    [
        ("cpu", None, MEMORY_MIB),
        ("cpu", 4 * 2**30, 2048),
        ("cpu", 64 * 2**30, MEMORY_MIB),
        ("cuda:0", 4 * 2**30, MEMORY_MIB),
    ],
)
def test_an_uploaded_model_leaves_half_of_the_container(device: str, container_bytes: int | None, mib: int) -> None:
    assert default_memory_mib(device, container_bytes) == mib
