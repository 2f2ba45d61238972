"""The plain clients of the services, which log the requests that a method sends."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.model_services.clients import ModelServices
from shared.schemas.diffusion import (
    ComposeReply,
    ComposeRequest,
    CorruptReply,
    CorruptRequest,
    EditReply,
    EditRequest,
    InstructReply,
    InstructRequest,
    RenderReply,
    RenderRequest,
)
from shared.schemas.service import ServiceName


class LoggedServices(ModelServices):
    """Plain clients that log `edits`, `renders`, `corruptions`, `compositions` and `instructed` edits.

    Edits to `refused_prompt` are refused.
    """

    refused_prompt: str | None = None

    def __init__(self, urls: Mapping[ServiceName, str]) -> None:
        super().__init__(urls)
        self.edits: list[EditRequest] = []
        self.renders: list[RenderRequest] = []
        self.corruptions: list[CorruptRequest] = []
        self.compositions: list[ComposeRequest] = []
        self.instructed: list[InstructRequest] = []

    def edit(self, request: EditRequest) -> EditReply:
        self.edits.append(request)
        reply = super().edit(request)
        if self.refused_prompt is None:
            return reply
        refusals = ["too long" if edit.prompt == self.refused_prompt else None for edit in request.edits]
        images = [[None] * len(row) if refusal else row for row, refusal in zip(reply.images, refusals, strict=True)]
        return reply.model_copy(update={"images": images, "refusals": refusals})

    def render(self, request: RenderRequest) -> RenderReply:
        self.renders.append(request)
        return super().render(request)

    def corrupt(self, request: CorruptRequest) -> CorruptReply:
        self.corruptions.append(request)
        return super().corrupt(request)

    def compose(self, request: ComposeRequest) -> ComposeReply:
        self.compositions.append(request)
        return super().compose(request)

    def instruct(self, request: InstructRequest) -> InstructReply:
        self.instructed.append(request)
        return super().instruct(request)
