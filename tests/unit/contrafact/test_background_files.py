"""Backgrounds of `contrafact submit --backgrounds`: a folder that no job would take is refused before it is sent."""

from pathlib import Path

import pytest
from rich.console import Console

from contrafact.client import Client
from contrafact.submit_command import with_backgrounds
from shared.schemas.diffusion import MOST_BACKGROUNDS
from shared.schemas.jobs import MethodChoice


@pytest.mark.parametrize("dry_run", [True, False])
def test_too_many_backgrounds_are_refused_before_they_are_uploaded(tmp_path: Path, dry_run: bool) -> None:
    for number in range(MOST_BACKGROUNDS + 1):
        (tmp_path / f"{number}.png").write_bytes(b"")
    methods = [MethodChoice(name="compose")]
    nobody = Client("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="65 images, and a job takes 64"):
        with_backgrounds(nobody, methods, tmp_path, Console(), dry_run=dry_run)
