"""What a language model writes in one go, whichever engine runs it."""

from __future__ import annotations

from pydantic import BaseModel


class Completion(BaseModel):
    """One reply. `finished` is False when it was cut off at the token limit."""

    text: str
    finished: bool
    prompt_tokens: int
    completion_tokens: int
