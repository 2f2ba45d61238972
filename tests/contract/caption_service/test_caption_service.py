"""caption_service over HTTP, with small BLIP-2 and chat weights: batching, seeds, refusals, disconnects."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from caption_service.app import create_app
from shared.schemas.service import ServiceInfo
from tests.support.caption_requests import ask, payloads
from tests.support.service_settings import settings
from tests.support.serving import serving
from tests.support.small_models import save_blip2, save_llava
from tests.support.small_profile import write_profile

ENGINES = {"blip2": save_blip2, "image-text-to-text": save_llava}


@pytest.fixture(scope="module", params=list(ENGINES))
def profile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captioner")
    ENGINES[request.param](folder / "captioner")
    return write_profile(folder, caption_engine=request.param)


NUCLEUS: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "seed": 5}


@pytest.mark.parametrize(
    "changes", [{}, {"beams": 3}, {"temperature": 1.0, "seed": 5}, NUCLEUS, {"prompt": "a photo of"}]
)
def test_deterministic_captions_do_not_depend_on_the_batch(profile: Path, changes: dict[str, Any]) -> None:
    images = payloads(5)

    async def main() -> None:
        async with serving(create_app(settings(profile, deterministic=True, max_batch=3))) as client:
            together = await ask(client, images, **changes)
            alone = [(await ask(client, [image], **changes))[0] for image in images]
            turned = await ask(client, images[::-1], **changes)
            crowd = await asyncio.gather(*(ask(client, [image], **changes) for image in images))
        assert together == alone == turned[::-1] == [captions[0] for captions in crowd]
        assert len(set(together)) > 1

    asyncio.run(main())


def test_the_seed_decides_what_is_sampled(profile: Path) -> None:
    async def main() -> None:
        async with serving(create_app(settings(profile, deterministic=True))) as client:
            [image] = payloads(1)
            first, second, again = [await ask(client, [image], temperature=1.5, seed=seed) for seed in (1, 2, 1)]
            greedy = [await ask(client, [image], seed=seed) for seed in (1, 2)]
        assert first == again != second
        assert greedy[0] == greedy[1]

    asyncio.run(main())


def test_the_narrowest_nucleus_is_the_greedy_caption(profile: Path) -> None:
    async def main() -> None:
        async with serving(create_app(settings(profile, deterministic=True))) as client:
            images = payloads(3)
            greedy = await ask(client, images)
            assert await ask(client, images, **NUCLEUS | {"top_p": 1e-6}) == greedy
            assert await ask(client, images, **NUCLEUS | {"temperature": 2.0}) != greedy

    asyncio.run(main())


@pytest.mark.slow
def test_several_captions_of_an_image_have_a_seed_each(profile: Path) -> None:
    async def main() -> None:
        async with serving(create_app(settings(profile, deterministic=True, max_batch=2))) as client:
            images = payloads(3)
            captions = await ask(client, images, **NUCLEUS, captions_per_image=2)
            alone = [await ask(client, [image], **NUCLEUS, captions_per_image=2) for image in images]
            single = await ask(client, images, **NUCLEUS)
        assert captions == [caption for pair in alone for caption in pair]
        assert captions[::2] == single
        assert all(first != second for first, second in alone)

    asyncio.run(main())


def test_bad_requests_are_refused_with_a_reason(profile: Path) -> None:
    good = payloads(1)[0].model_dump(mode="json")
    cases = [
        ({"images": [good], "beams": 2, "temperature": 1.0}, 422, "beam search does not sample"),
        ({"images": [good], "min_tokens": 9, "max_tokens": 4}, 422, "min_tokens is above max_tokens"),
        ({"images": [good], "top_p": 0.9}, 422, "set the temperature above 0"),
        ({"images": [good], "captions_per_image": 2}, 422, "set the temperature above 0"),
        ({"images": [good], "top_p": 0.0, "temperature": 1.0}, 422, "top_p"),
        ({"images": [{"png": "AAAA"}]}, 400, "not a PNG, JPEG or WebP"),
        ({"images": [{"png": "!"}]}, 422, "not valid base64"),
        ({"images": [good] * 17}, 422, "at most 16 items"),
        ({"images": [good], "color": 1}, 422, "unknown field color"),
    ]

    async def main() -> None:
        async with serving(create_app(settings(profile))) as client:
            for body, status, message in cases:
                reply = await client.post("/v1/captions", json=body)
                assert (reply.status_code, reply.headers["content-type"]) == (status, "application/problem+json")
                assert message in reply.json()["detail"]

    asyncio.run(main())


def test_info_names_the_weights_and_its_revision_follows_them(profile: Path) -> None:
    async def info(**changes: Any) -> ServiceInfo:
        async with serving(create_app(settings(profile, **changes))) as client:
            return ServiceInfo.model_validate_json((await client.get("/v1/info")).content)

    plain, again, deterministic = [asyncio.run(info(**changed)) for changed in ({}, {}, {"deterministic": True})]
    assert plain == again
    assert plain.revision != deterministic.revision
    assert plain.weights[0].role == "captioner"
    assert len(plain.weights[0].revision) == 64


def test_the_openapi_document_describes_request_reply_and_deadline(profile: Path) -> None:
    async def main() -> dict[str, Any]:
        async with serving(create_app(settings(profile))) as client:
            return dict((await client.get("/openapi.json")).json())

    document = asyncio.run(main())
    operation = document["paths"]["/v1/captions"]["post"]
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/CaptionRequest")
    assert operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].endswith("/CaptionReply")
    assert operation["parameters"][0]["name"] == "X-Deadline-Seconds"
    assert {"CaptionRequest", "CaptionReply", "ImagePayload"} <= set(document["components"]["schemas"])


def test_older_blip2_checkpoints_get_their_placeholder_token(tmp_path: Path) -> None:
    """Most published BLIP-2 weights are older than the token that marks the image."""
    save_blip2(tmp_path / "captioner", image_token=False)
    profile = write_profile(tmp_path, caption_engine="blip2")

    async def main() -> list[str]:
        async with serving(create_app(settings(profile))) as client:
            return await ask(client, payloads(3), prompt="a photo of")

    assert len(set(asyncio.run(main()))) > 1


async def failed_readiness(client: httpx.AsyncClient) -> dict[str, Any]:
    """What `/readyz` answers once loading has failed."""
    give_up = time.monotonic() + 300
    while not (document := (await client.get("/readyz")).json()).get("failed"):
        assert time.monotonic() < give_up, document
        await asyncio.sleep(0.02)
    return dict(document)


def test_missing_weights_are_named_by_readyz(tmp_path: Path) -> None:
    profile = write_profile(tmp_path, caption_engine="blip2")

    async def main() -> dict[str, Any]:
        app = create_app(settings(profile))
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client,
        ):
            document = await failed_readiness(client)
            assert (await client.get("/healthz")).status_code == 200
            assert (await client.post("/v1/captions", json={})).status_code == 503
            return document

    document = asyncio.run(main())
    assert document["status"] == 503
    assert "no weights at" in document["detail"]
