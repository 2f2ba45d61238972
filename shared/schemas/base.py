"""Base of all contracts (unknown fields refused, values frozen) and the image on the wire.

The error document of the gateway and of every model service.
"""

from __future__ import annotations

import base64
import binascii
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Protocol

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializationInfo,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

JsonObject = dict[str, JsonValue]  # JSON with arbitrary keys
# Of a job, and of the models under test that it fits.
Kind = Literal["classification", "segmentation", "detection", "vqa"]
DEFAULT_KIND: Kind = "classification"  # of models and profiles that name none
# Both were once named `task`. Input may still use that name; output never does.
KIND = AliasChoices("kind", "task")
TASK_DESCRIPTION = AliasChoices("task_description", "task")

MAX_IMAGES_PER_MESSAGE = 16
MAX_BOXES = 1_000  # of an image
MAX_MESSAGE_BYTES = 48 * 1024 * 1024
# Two square images and a mask of this side fit into a message, whatever their content: as PNG, noise needs 3 bytes per
# pixel and a mask one; base64 turns three bytes into four.
MAX_WORKING_SIDE = 2_304


def on_one_line(value: Any) -> Any:
    """Text with spaces for line breaks: prompts contain it, and line breaks separate their fields."""
    return " ".join(value.split()) if isinstance(value, str) else value


class Contract(BaseModel):
    """A message that crosses a process boundary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _name_the_allowed(cls, value: Any) -> Any:
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            fields = _input_fields(cls)
            if not fields.accepted.issuperset(value):
                unknown = sorted(str(name)[:50] for name in value.keys() - fields.accepted)[:5]
                raise ValueError(f"unknown field {', '.join(unknown)}; allowed are {', '.join(fields.current)}")
            for current, *earlier in fields.renamed:
                if current in value and any(name in value for name in earlier):
                    raise ValueError(f"{' and '.join([current, *earlier])} are one field; send {current} only")
        return value


class _InputFields(NamedTuple):
    """The names of a contract's fields on input: all, the current ones, and those of fields that had earlier names."""

    accepted: frozenset[str]
    current: list[str]
    renamed: list[list[str]]


@cache
def _input_fields(contract: type[Contract]) -> _InputFields:
    names = [_input_names(name, field) for name, field in contract.model_fields.items()]
    accepted = frozenset(name for field_names in names for name in field_names)
    return _InputFields(accepted, [first for first, *_ in names], [each for each in names if len(each) > 1])


def _input_names(name: str, field: FieldInfo) -> list[str]:
    """The names of a field on input: the current name, then earlier ones."""
    if isinstance(field.validation_alias, AliasChoices):
        return [str(choice) for choice in field.validation_alias.choices]
    return [field.alias or name]


class ImageKeeper(Protocol):
    """Stores images while a message is recorded: bytes in, digest out, and back."""

    def keep(self, png: bytes) -> str:
        """Store the PNG bytes once and return their digest."""
        ...

    def load(self, digest: str) -> bytes:
        """Return the PNG bytes of a digest that `keep` returned."""
        ...


class ImagePayload(Contract):
    """One image as lossless PNG (RGB, or L for masks); base64 in JSON.

    With an `ImageKeeper` as serialization/validation context (`context={"images": keeper}`), the JSON
    holds the digest instead of the bytes: that is how calls are recorded.
    """

    png: Annotated[
        bytes,
        Field(json_schema_extra={"format": "byte", "contentEncoding": "base64", "contentMediaType": "image/png"}),
    ]

    @model_validator(mode="before")
    @classmethod
    def _from_wire(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, dict) and set(value) == {"digest"}:
            if not info.context or "images" not in info.context:
                raise ValueError("an image digest is only understood where images are recorded; send the PNG itself")
            return {"png": info.context["images"].load(value["digest"])}
        if isinstance(value, dict) and isinstance(value.get("png"), str):
            try:
                return {**value, "png": base64.b64decode(value["png"], validate=True)}
            except binascii.Error as error:
                raise ValueError(f"png is not valid base64: {error}") from error
        return value

    @model_serializer(mode="plain")
    def _to_wire(self, info: SerializationInfo) -> dict[str, Any]:
        if info.context and "images" in info.context:
            return {"digest": info.context["images"].keep(self.png)}
        return {"png": base64.b64encode(self.png).decode() if info.mode == "json" else self.png}


class ProblemDocument(Contract):
    """An error (RFC 9457). `detail` says what is wrong and what to change."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    instance: str | None = None
