"""The models of a kit: one that the gateway has under the same name must be the same model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import httpx
import pytest

from contrafact import Client
from research.papers.jobs import add_models
from research.papers.kits import KITS
from shared.problems import NotReady
from shared.schemas.jobs import ModelsListing, ModelView

KIT = next(iter(KITS.values()))


class Listing(Client):
    """A client of a gateway that has one model."""

    def __init__(self, description: str) -> None:
        super().__init__("http://127.0.0.1:1", transport=httpx.MockTransport(lambda request: httpx.Response(500)))
        fields: dict[str, Any] = {"name": "mine", "description": description}
        self.listing = ModelsListing(models=[ModelView.model_construct(**fields)])

    def models_when_ready(self, on_wait: Callable[[NotReady], None] = lambda _: None) -> ModelsListing:
        return self.listing


def test_another_model_of_the_same_name_is_refused_and_the_same_one_is_not_sent_again() -> None:
    """`--model mine=B` after `--model mine=A` tested A again, and its tables were called B's."""
    with closing(Listing(f"folder/a, for {KIT.title}")) as client:
        add_models(client, {"mine": "folder/a"}, None, KIT)
        with pytest.raises(ValueError, match="another model 'mine'"):
            add_models(client, {"mine": "folder/b"}, None, KIT)
