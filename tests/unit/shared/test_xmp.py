"""XMP in a PNG: readers find it, pixels stay, and no value breaks the XML."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from shared.media.images import canonical, decode, encode
from shared.media.xmp import NAMESPACE, SOURCE_TYPES, with_xmp, xmp_bytes, xmp_packet

PNG = encode(np.random.default_rng(1).integers(0, 255, (9, 7, 3)).astype(np.uint8))
RDF = "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
IPTC = "{http://iptc.org/std/Iptc4xmpExt/2008-02-29/}"


@given(st.text())
def test_a_reader_finds_the_packet_and_the_pixels_stay(value: str) -> None:
    packet = xmp_packet("composite", "Contrafact 0", {"Job": value})
    marked = with_xmp(PNG, packet)
    assert len(marked) == len(PNG) + xmp_bytes(packet)
    with Image.open(io.BytesIO(marked)) as image:
        image.verify()
    with Image.open(io.BytesIO(marked)) as image:
        image.load()
        read = image.info["xmp"]
    (description,) = ElementTree.fromstring(read).iter(f"{RDF}Description")
    assert description.get(f"{IPTC}DigitalSourceType") == f"{SOURCE_TYPES}composite"
    assert description.get(f"{{{NAMESPACE}}}Job") is not None
    assert np.array_equal(decode(marked), decode(PNG))
    assert canonical(marked).png == PNG, "an image that is sent again loses it"


def test_only_characters_that_xml_forbids_are_left_out() -> None:
    packet = xmp_packet("composite", "Contrafact 0", {"Job": "a\x00b\ud800c\uffff Straße 東京 🌃\U0010ffff"})
    (description,) = ElementTree.fromstring(packet).iter(f"{RDF}Description")
    assert description.get(f"{{{NAMESPACE}}}Job") == "abc Straße 東京 🌃\U0010ffff"


def test_equal_provenance_gives_equal_bytes() -> None:
    packet = xmp_packet("trainedAlgorithmicMedia", "Contrafact 0", {"Job": "a & <b>", "Arm": '"'})
    assert packet == xmp_packet("trainedAlgorithmicMedia", "Contrafact 0", {"Job": "a & <b>", "Arm": '"'})
