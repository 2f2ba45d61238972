"""Hostile image files are refused one by one; of odd but valid ones only the pixels are stored."""

from __future__ import annotations

import hashlib
import json

import httpx
import numpy as np
import pytest

from gateway.database.tables import Job
from shared.media.images import canonical, decode
from shared.problems import Problem
from tests.support.gateway_under_test import Gateway, picture
from tests.support.hostile.pictures import ACCEPTED, PAYLOAD, REFUSED, AcceptedPicture, RefusedPicture
from tests.support.hostile.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("watch")


def put(gateway: Gateway, data: bytes) -> httpx.Response:
    return gateway.client.put(f"/images/{hashlib.sha256(data).hexdigest()}", content=data)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_a_hostile_picture_is_refused_with_a_reason(gateway: Gateway, case: RefusedPicture) -> None:
    assert_refused(put(gateway, case.build()), case.status, case.words)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.name)
@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_an_odd_picture_is_kept_as_its_pixels_alone(gateway: Gateway, case: AcceptedPicture) -> None:
    reply = put(gateway, case.build())
    assert reply.status_code == 200, reply.text
    stored = gateway.client.get(f"/images/{reply.json()['digest']}")
    assert np.array_equal(decode(stored.content), case.pixels())
    assert stored.content == canonical(case.build()).png
    assert not any(part in stored.content for part in (b"script", b"<?php", b"PK\3\4", b"eXIf", b"iCCP", PAYLOAD))
    assert stored.headers["Content-Type"] == "image/png"
    assert stored.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_in_a_job_each_hostile_picture_fails_alone(gateway: Gateway) -> None:
    files = [("images", (f"{case.name}.png", case.build())) for case in REFUSED]
    files += [("images", ("good.png", picture(1)))]
    reply = gateway.client.post("/jobs", files=files, data={"spec": json.dumps({"task": "name it", "models": []})})
    assert reply.status_code == 202, reply.text
    assert reply.json()["progress"]["images"]["failed"] == len(REFUSED)
    with gateway.context.sessions() as session:
        *failed, good = session.get_one(Job, reply.json()["id"]).source_images
        assert good.state == "pending"
        for row, case in zip(failed, REFUSED, strict=True):
            assert (row.file_name, row.state, row.digest) == (f"{case.name}.png", "failed", None)
            assert case.words in row.failure


@pytest.mark.parametrize("gateway", ["sqlite"], indirect=True)
def test_a_file_beyond_the_limit_is_refused_before_it_is_read(gateway: Gateway) -> None:
    assert_refused(put(gateway, bytes(64 * 1024**2 + 1)), 413, "larger than 67,108,864 bytes")


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
def test_services_refuse_it_too(case: RefusedPicture) -> None:
    with pytest.raises(Problem) as raised:
        decode(case.build())
    assert raised.value.status == case.status
    assert case.words in raised.value.detail
