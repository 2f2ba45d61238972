"""Language engines: each entry of ENGINES is a function that creates a language model from what is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from llm_service.engines.openai import connect_openai
from llm_service.engines.tgi import connect_tgi
from llm_service.engines.transformers import load_transformers
from shared.profiles.profile import Language
from shared.schemas.language import GenerateRequest
from shared.schemas.service import WeightsInfo
from shared.service.completion import Completion
from shared.service.devices import Loading


class LanguageModel(Protocol):
    """The interface of every engine's language model."""

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def device(self) -> str:
        """Where the model runs."""
        ...

    @property
    def weights(self) -> Sequence[WeightsInfo]:
        """Its entries of `/v1/info`."""
        ...

    async def write(self, request: GenerateRequest, deadline: float) -> Completion:
        """Generate one reply, constrained to the request's schema; it may be cut off at `max_tokens`."""
        ...

    async def score(self, texts: Sequence[str], deadline: float) -> list[tuple[float, int]]:
        """Per text: sum of natural-log token probabilities, and the number of tokens scored."""
        ...


ENGINES: dict[str, Callable[[Loading[Language]], LanguageModel]] = {
    "transformers": load_transformers,
    "openai": connect_openai,
    "tgi": connect_tgi,
}
