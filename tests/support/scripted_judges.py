"""A vision server whose models judge drawn edits in known ways; it knows the pictures by their bytes."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from fastapi import FastAPI

from embedded.judge_audit import TRUTH, KnownEdit
from shared.profiles.judge_audit import LABEL, PAIRWISE, REST, VALUE

JUDGES = ("honest", "says-yes", "blind", "yes-biased", "noisy", "refuses-a-tenth", "verbose")
_BEGINNINGS = {"Is there": LABEL, "Does this": VALUE, "The second": REST, "One of": PAIRWISE}
_SOURCE_OR_ARM = "source or arm"


def judge_server(edits: Sequence[KnownEdit], calls: list[str]) -> FastAPI:
    """The server; each call's model is added to `calls`."""
    kinds = {_digest(edit.source.png): _SOURCE_OR_ARM for edit in edits}
    kinds |= {_digest(edit.null.png): _SOURCE_OR_ARM for edit in edits}
    kinds |= {_digest(image.png): kind for edit in edits for kind, image in edit.images.items()}
    app = FastAPI()

    @app.post("/v1/chat/completions")
    def answer(body: dict[str, Any]) -> dict[str, object]:
        calls.append(body["model"])
        *shown, text = body["messages"][0]["content"]
        pictures = [base64.b64decode(picture["image_url"]["url"].partition(",")[2]) for picture in shown]
        said = _said(body["model"], text["text"], [_digest(picture) for picture in pictures], kinds)
        return {
            "choices": [{"message": {"content": said}, "finish_reason": "length" if len(said) > 60 else "stop"}],
            "usage": {"prompt_tokens": 100 * len(pictures), "completion_tokens": 1, "total_tokens": 0},
        }

    return app


def _said(judge: str, text: str, pictures: Sequence[str], kinds: Mapping[str, str]) -> str:
    question = next(name for beginning, name in _BEGINNINGS.items() if text.startswith(beginning))
    yes, no = ("first", "second") if question == PAIRWISE else ("yes", "no")
    kind = next((kinds[picture] for picture in pictures if kinds[picture] != _SOURCE_OR_ARM), _SOURCE_OR_ARM)
    truth = TRUTH[question][kind]
    if question == PAIRWISE:  # between two arms without the change it takes the first
        truth = kinds[pictures[0]] == kind or not truth
    chance = int(_digest("".join([judge, text, *pictures]).encode())[:8], 16) / 2**32
    if judge == "says-yes":
        return "yes"
    if judge == "blind":
        return yes if int(_digest(text.encode())[:2], 16) % 2 else no
    if judge == "refuses-a-tenth" and chance < 0.1:
        return "I'm sorry, I can't help with that request."
    if judge == "yes-biased" and question != PAIRWISE:
        truth = truth or chance < 0.5
    if judge == "noisy":
        truth = truth != (chance < 0.2)
    if judge == "verbose":
        return f"Looking closely at the picture, and at each part of it, my considered answer would be {truth}."
    return yes if truth else no


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
