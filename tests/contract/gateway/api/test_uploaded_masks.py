"""Masks uploaded before their job and named by digest."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from sqlalchemy import select

from gateway.database.tables import SourceImage
from shared.media.images import decode, encode
from shared.media.storage import image_key
from tests.support.gateway_under_test import Gateway, key_of, serve_gateway

PALETTED = {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 2, "thing": True}], "void": [1]}
COLOURED = {
    "classes": [{"name": "road", "colour": "#804080"}, {"name": "car", "colour": "#00008e", "thing": True}],
    "void": ["#4682b4"],
}


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def paletted(classes: np.ndarray, bits: int) -> bytes:
    image = Image.fromarray(classes.astype(np.uint8)).convert("P")
    image.putpalette([0x80, 0x40, 0x80, 0x46, 0x82, 0xB4, 0, 0, 0x8E])
    buffer = io.BytesIO()
    image.save(buffer, "PNG", bits=bits)
    return buffer.getvalue()


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[Gateway]:
    with serve_gateway(tmp_path, authentication=True) as served:
        yield served


def upload(gateway: Gateway, key: dict[str, str], data: bytes, mask: bool = False) -> httpx.Response:
    query = {"mask": "true"} if mask else {}
    return gateway.client.put(f"/images/{digest_of(data)}", content=data, headers=key, params=query)


def by_digest(gateway: Gateway, key: dict[str, str], images: list[dict[str, str]], **more: Any) -> httpx.Response:
    path = "/jobs?dry_run=true" if more.pop("ahead", False) else "/jobs"
    spec = {"task": "segment the street", "models": [], "images": images, **more}
    return gateway.client.post(path, json=spec, headers=key)


def test_uploaded_masks_are_named_by_digest_as_indices_or_in_colours(gateway: Gateway, ann: dict[str, str]) -> None:
    classes = np.random.default_rng(3).integers(0, 3, (6, 8))
    image, mask = encode(np.zeros((6, 8, 3), np.uint8)), paletted(classes, 2)
    entry = {"digest": digest_of(image), "mask": digest_of(mask), "name": "a.png"}
    place = f"/images/{entry['mask']}?mask=true"
    assert upload(gateway, ann, image).status_code == 200
    assert upload(gateway, ann, mask).status_code == 200, "as an image, it has colours alone"
    assert gateway.client.head(place, headers=ann).status_code == 404
    lacking = by_digest(gateway, ann, [entry], masks=PALETTED)
    assert (lacking.status_code, lacking.json()["missing"]) == (422, [entry["mask"]])
    plan = by_digest(gateway, ann, [entry], masks=PALETTED, ahead=True).json()
    assert (plan["images"], plan["missing"], plan["labelled"]) == (1, 1, 0)
    reply = upload(gateway, ann, mask, mask=True)
    assert reply.status_code == 200, reply.text
    assert reply.json() == upload(gateway, ann, mask, mask=True).json()
    assert gateway.client.head(place, headers=ann).status_code == 200
    assert (decode(gateway.client.get(place, headers=ann).content, "L") == classes).all()
    plan = by_digest(gateway, ann, [entry], masks=PALETTED, ahead=True).json()
    assert (plan["images"], plan["missing"], plan["labelled"]) == (1, 0, 1)
    expected = np.array([0, 255, 1], np.uint8)[classes]
    for masks in (PALETTED, COLOURED):
        job = by_digest(gateway, ann, [entry, {"digest": entry["digest"]}], masks=masks)
        assert job.status_code == 202, job.text
        assert (job.json()["images"], job.json()["labelled"]) == (2, 1)
        with gateway.context.sessions() as session:
            first_of_job = SourceImage.job_id == job.json()["id"], SourceImage.position == 0
            row = session.scalars(select(SourceImage).where(*first_of_job)).one()
            assert row.mask_classes == ["road", "car"]
            kept_map = str(row.mask_digest)
        assert (decode(gateway.context.store.get(image_key(kept_map)), "L") == expected).all()
    places = {"classes": [{"name": "road", "index": 0}, {"name": "car", "index": 1}], "void": [255]}
    again = by_digest(gateway, ann, [{**entry, "mask": kept_map}], masks=places)
    assert (again.status_code, again.json()["labelled"]) == (202, 1), "the mask of a job's results is a mask again"


def test_masks_by_digest_are_their_owners_and_fit_their_images(gateway: Gateway, ann: dict[str, str]) -> None:
    ben = key_of(gateway, "ben")
    image, good, wide = (encode(np.zeros(size, np.uint8)) for size in ((6, 8, 3), (6, 8), (6, 9)))
    for data, key, as_mask in ((image, ann, False), (image, ben, False), (good, ann, True), (wide, ann, True)):
        assert upload(gateway, key, data, as_mask).status_code == 200
    entry = {"digest": digest_of(image), "mask": digest_of(good)}
    other = by_digest(gateway, ben, [entry], masks=PALETTED)
    assert (other.status_code, other.json()["missing"]) == (422, [entry["mask"]])
    job = by_digest(gateway, ann, [entry, {**entry, "mask": digest_of(wide)}], masks=PALETTED).json()
    (failure,) = job["failures"]
    assert "9×6" in failure["reason"]
    values = upload(gateway, ann, good, mask=True).json()["digest"]
    refusals: list[tuple[dict[str, str], dict[str, Any], str]] = [
        ({**entry, "mask": digest_of(wide)}, {"masks": PALETTED}, "none of the 1 images can be used"),
        (entry, {}, "does not say what they mean"),
        ({"digest": entry["digest"]}, {"masks": PALETTED}, "no image names its mask: upload each with PUT"),
        ({**entry, "label": "car"}, {"masks": PALETTED}, "leave out one of them"),
        ({**entry, "mask": entry["digest"]}, {"masks": PALETTED}, "PUT /images/{digest}?mask=true"),
        ({**entry, "digest": values}, {"masks": PALETTED}, "1 images of the manifest are not uploaded"),
        (entry, {"masks": COLOURED}, "has the colour #000000; add it to `masks.classes`"),
    ]
    for listed, spec, sentence in refusals:
        reply = by_digest(gateway, ann, [listed], **spec)
        assert (reply.status_code, sentence in reply.json()["detail"]) == (422, True), reply.text
    jpeg = io.BytesIO()
    Image.fromarray(np.zeros((6, 8), np.uint8)).save(jpeg, "JPEG")
    lossy = upload(gateway, ann, jpeg.getvalue(), mask=True)
    assert (lossy.status_code, "PNG" in lossy.text) == (422, True)
