"""Encoding of segmentation masks: which pixel value or colour is which class, and which are void."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from shared.characters import refuse_deceptive
from shared.schemas.base import Contract, Kind

MAX_LABEL_CHARACTERS = 200
MAX_MASK_CLASSES = 254  # a class index is one byte, and two values are reserved
MASKED: frozenset[Kind] = frozenset({"segmentation"})  # kinds whose answers are masks
ALL_CLASSES = "all classes"  # the name of the mean over all classes, in place of a class name

Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL_CHARACTERS), AfterValidator(refuse_deceptive)]
Index = Annotated[int, Field(ge=0, le=255)]
Colour = Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$", description="red, green and blue: #804080")]


class MaskClass(Contract):
    """A class of the masks, by the grey value or palette index of its pixels, or by their colour.

    `thing`: it has countable shapes (a pedestrian, no sky). Edits may not name things; where no class is marked as one,
    they may not name any.
    """

    name: Label
    index: Index | None = None
    colour: Colour | None = None
    thing: bool = False

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.index is None) == (self.colour is None):
            raise ValueError(f"class {self.name!r} needs either an index or a colour")
        return self


class MaskSpec(Contract):
    """How masks are read: PNG files of grey values or palette indices, or in colours. Void pixels count nowhere."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 1, "thing": True}], "void": [255]},
                {"classes": [{"name": "road", "colour": "#804080"}, {"name": "sky", "colour": "#4682b4"}]},
            ]
        }
    )

    classes: Annotated[list[MaskClass], Field(min_length=1, max_length=MAX_MASK_CLASSES)]
    void: Annotated[
        list[Index | Colour], Field(max_length=256, description="values or colours of pixels that are not judged")
    ] = Field(default_factory=list)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        if len({name.index is None for name in self.classes} | {isinstance(value, str) for value in self.void}) > 1:
            raise ValueError("name all classes and void by an index, or all by a colour; not some by each")
        names = [mask_class.name for mask_class in self.classes]
        values = [
            str(mask_class.index if mask_class.colour is None else mask_class.colour).lower()
            for mask_class in self.classes
        ]
        values += [str(value).lower() for value in self.void]
        for term, entries in (("class", names), ("value", values)):
            if repeated := next((mask_class for mask_class in entries if entries.count(mask_class) > 1), None):
                raise ValueError(f"the {term} {repeated!r} appears more than once; give each once")
        if ALL_CLASSES in names:
            raise ValueError(f"no class may be named {ALL_CLASSES!r}, which names the mean over them; rename it")
        return self

    @property
    def protected(self) -> list[str]:
        """The names of the classes that no edit may name: things, or all classes if none is marked as one."""
        return self.things or [mask_class.name for mask_class in self.classes]

    @property
    def things(self) -> list[str]:
        """The names of the classes that are marked as having countable shapes."""
        return [mask_class.name for mask_class in self.classes if mask_class.thing]
