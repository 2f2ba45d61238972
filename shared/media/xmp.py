"""Provenance inside image files: an XMP packet in a PNG, with IPTC's digital source type.

A PNG carries XMP in an iTXt chunk of this keyword (XMP specification, part 3). Readers such as ExifTool and Pillow show
it; pixels, and so the digests of images, do not change. The packet names IPTC's term for how the image came to be
(cv.iptc.org/newscodes/digitalsourcetype), and the image's job, id, arm, method and source in properties of our own.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from shared.schemas.exports import DigitalSource

SOURCE_TYPES = "http://cv.iptc.org/newscodes/digitalsourcetype/"
NAMESPACE = "urn:contrafact:provenance:"
KEYWORD = b"XML:com.adobe.xmp"
_PACKET_ID = "W5M0MpCehiHzreSzNTczkc9d"  # fixed by the XMP specification
_SIGNATURE_AND_HEADER = 8 + 25  # bytes: PNG's signature, and IHDR, which is always the first chunk
_FORBIDDEN = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xmp_packet(source: DigitalSource, creator: str, properties: Mapping[str, str]) -> bytes:
    """An XMP packet (UTF-8): the digital source type, the creating program, and properties in our namespace."""
    attributes = "".join(
        f"\n   contrafact:{name}={quoteattr(_plain_text(value))}" for name, value in properties.items()
    )
    return f"""<?xpacket begin="\ufeff" id="{_PACKET_ID}"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about=""
   xmlns:xmp="http://ns.adobe.com/xap/1.0/"
   xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
   xmlns:contrafact="{NAMESPACE}"
   xmp:CreatorTool={quoteattr(creator)}
   Iptc4xmpExt:DigitalSourceType="{SOURCE_TYPES}{source}"{attributes}/>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>""".encode()


def with_xmp(png: bytes, packet: bytes) -> bytes:
    """The PNG with an XMP packet after its header. The PNG must have none: those that Contrafact writes do not."""
    return png[:_SIGNATURE_AND_HEADER] + _chunk(packet) + png[_SIGNATURE_AND_HEADER:]


def xmp_bytes(packet: bytes) -> int:
    """The bytes by which `with_xmp` enlarges a PNG."""
    return len(_chunk(packet))


def _chunk(packet: bytes) -> bytes:
    content = KEYWORD + b"\0\0\0\0\0" + packet  # not compressed; no language, no translated keyword
    chunk = b"iTXt" + content
    return struct.pack(">I", len(content)) + chunk + struct.pack(">I", zlib.crc32(chunk))


def _plain_text(value: str) -> str:
    """The text without characters that XML 1.0 forbids (its production 2, Char)."""
    return _FORBIDDEN.sub("", value)
