"""The four services around the shipped language model: one caption for every picture, arithmetic for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from gateway.model_services.clients import ModelServices
from llm_service.app import create_app
from shared.schemas.caption import CaptionReply, CaptionRequest
from shared.schemas.service import SERVICES
from shared.service.settings import ServiceSettings
from tests.support.listening import listen
from tests.support.small_services import SmallServices, serve

CAPTION = "This is a photo of a small red bus. The bus is in a city. It is a rainy day."


class Services(ModelServices):
    """The services, with a captioner that always returns the same caption."""

    def caption(self, request: CaptionRequest) -> CaptionReply:
        return CaptionReply(captions=[CAPTION] * len(request.images))


@contextmanager
def captioned(others: SmallServices | None = None) -> Iterator[Services]:
    """The services: the shipped language model behind its own app, the rest arithmetic (of `others` if given)."""
    app = create_app(ServiceSettings(profile="tiny", device="cpu", threads=1))
    with listen(app) as language, serve(others or SmallServices()) as small:
        urls = {**dict.fromkeys(SERVICES, small), "llm_service": language}
        with closing(Services(urls)) as services:
            yield services
