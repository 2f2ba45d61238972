"""Check the directory of a TIFF before Pillow reads it: tags may claim a file's bytes thousands of times over."""

from __future__ import annotations

import struct

from shared.problems import InvalidInput, Malformed, TooLarge

MAX_TAGS = 200
MAX_STRIPS = 100_000
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}  # bytes of each type
_STRIPS = (273, 279, 324, 325)  # offsets and lengths of strips and tiles
_TILE = (322, 323)  # width and length of a tile


def check_tiff(data: bytes, max_pixels: int) -> None:
    """Refuse a TIFF whose first directory costs more than its image. Does nothing for files of other formats.

    Raises Malformed (unreadable, BigTIFF), TooLarge (tags, strips, tiles) and InvalidInput (several pictures).
    """
    if data[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return
    if data[2:4] in (b"+\0", b"\0+"):
        raise Malformed("the file is a BigTIFF; save it as a plain TIFF or PNG")
    order = "<" if data[:2] == b"II" else ">"
    try:
        (start,) = struct.unpack_from(f"{order}I", data, 4)
        (count,) = struct.unpack_from(f"{order}H", data, start)
        if count > MAX_TAGS:
            raise TooLarge(f"the TIFF has {count:,} tags, more than {MAX_TAGS}; save it again")
        entries = [struct.unpack_from(f"{order}HHI4s", data, start + 2 + 12 * place) for place in range(count)]
        (following,) = struct.unpack_from(f"{order}I", data, start + 2 + 12 * count)
    except struct.error as error:
        raise Malformed("the TIFF is cut off; send it again") from error
    if following:
        raise InvalidInput("the TIFF holds several pictures; send one as a file")
    if sum(_SIZES.get(kind, 1) * number for _, kind, number, _ in entries) > len(data):
        raise TooLarge("the tags of the TIFF are larger than the file; save it again")
    if any(number > MAX_STRIPS for tag, _, number, _ in entries if tag in _STRIPS):
        raise TooLarge(f"the TIFF has more than {MAX_STRIPS:,} strips or tiles; save it again")
    sides = [
        struct.unpack(f"{order}H", value[:2])[0] if kind == 3 else struct.unpack(f"{order}I", value)[0]
        for tag, kind, _, value in entries
        if tag in _TILE
    ]
    if len(sides) == len(_TILE) and sides[0] * sides[1] > max_pixels:
        raise TooLarge(f"the TIFF has tiles of {sides[0]}×{sides[1]} pixels; save it in strips")
