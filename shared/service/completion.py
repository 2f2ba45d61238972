"""The reply of a language model; every engine returns this type."""

from __future__ import annotations

from pydantic import BaseModel


class Completion(BaseModel):
    """One reply. `finished` is False when it was cut off at the token limit.

    `instead`: what a server sent in place of a text, such as its refusal or only its reasoning.
    """

    text: str
    instead: str = ""
    finished: bool
    prompt_tokens: int
    completion_tokens: int
