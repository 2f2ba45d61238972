"""Messages between the evaluator and the process of an uploaded model, over a socket pair.

    4 bytes: length of the header │ header: JSON │ body: raw bytes, whose length the receiver knows

Nothing is unpickled: the process of a model is not trusted.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from shared.schemas.base import DEFAULT_KIND, Kind

MEMORY_MIB = 4096
MAX_HEADER_BYTES = 32 * 1024**2  # enough for the names of the classes
_LENGTH = struct.Struct("<I")
Header = TypeVar("Header", bound="Message")


class Message(BaseModel):
    """A header."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(Message):
    """What the process of one uploaded model may use, and how it computes. `device` is torch's name."""

    device: str = "cpu"
    memory_mib: int = MEMORY_MIB
    load_seconds: float = 240.0
    batch_seconds: float = 120.0
    max_batch: int = 16
    threads: int = 1
    deterministic: bool = False


def default_memory_mib(device: str, container_bytes: int | None) -> int:
    """The default of `Limits.memory_mib`: at most half of the container's memory, if that is limited.

    The other half is for the service itself. On a GPU the limit is on the GPU's memory, not on the container's.
    """
    if container_bytes is None or device.startswith("cuda"):
        return MEMORY_MIB
    return min(MEMORY_MIB, container_bytes // 2 // 1024**2)


class Ready(Message):
    """The process `pid` has its limits and waits for `Load`."""

    pid: int


class Load(Message):
    """Load the model in this folder and try it."""

    folder: str


class Batch(Message):
    """Run the model on RGB images of these heights and widths; the body has their pixels."""

    sizes: list[tuple[int, int]]


class Reply(Message):
    """`failure` is empty on success. `Load` then returns `kind` and `classes`, `Batch` the outputs as the body.

    Outputs are an array per image, which `receive` of its kind reads.
    """

    failure: Literal["", "refused", "memory", "device", "not finite"] = ""
    detail: str = ""
    kind: Kind = DEFAULT_KIND
    classes: list[str] = []


def send(connection: socket.socket, header: Message, body: Sequence[NDArray[Any]] = ()) -> None:
    """Send a header and the bytes of C-contiguous arrays. Raises OSError."""
    data = header.model_dump_json().encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)
    for array in body:
        connection.sendall(np.ascontiguousarray(array).data.cast("B"))


def receive(connection: socket.socket, kind: type[Header], until: float | None = None) -> Header:
    """Receive a header; `until` is on the clock of `time.monotonic()`.

    Raises EOFError if the other side has ended, TimeoutError, OSError, and ValueError for a header of another kind.
    """
    prefix = bytearray(_LENGTH.size)
    receive_into(connection, memoryview(prefix), until)
    (length,) = _LENGTH.unpack(prefix)
    if length > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length:,} bytes")
    data = bytearray(length)
    receive_into(connection, memoryview(data), until)
    return kind.model_validate_json(bytes(data))


def receive_array(
    connection: socket.socket, shape: Sequence[int], dtype: type[np.generic], until: float | None = None
) -> NDArray[Any]:
    """Receive an array of this shape. Raises as `receive` does."""
    array: NDArray[Any] = np.empty(tuple(shape), dtype)
    if array.nbytes:
        receive_into(connection, array.data.cast("B"), until)
    return array


def receive_into(connection: socket.socket, buffer: memoryview, until: float | None) -> None:
    """Fill a buffer. Raises EOFError, TimeoutError and OSError."""
    while buffer.nbytes:
        if until is not None:
            connection.settimeout(max(0.001, until - time.monotonic()))
        count = connection.recv_into(buffer)
        if not count:
            raise EOFError("the other side has ended")
        buffer = buffer[count:]
