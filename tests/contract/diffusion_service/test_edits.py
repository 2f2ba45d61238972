"""`POST /v1/edits` of diffusion_service, on small weights: reply shape, batching, caching, refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from diffusion_service.app import create_app
from shared.media.images import decode
from shared.schemas.base import ImagePayload
from shared.schemas.diffusion import EditRequest, NullText, PromptEdit, Rendering, RenderRequest
from shared.service.endpoints import Services
from tests.support.diffusion_requests import photo, pixels
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_diffusion import write_diffusion
from tests.support.small_profile import write_profile

CAPTION = "A red car stands on a beach. It rains."
NIGHT = "A red car stands on a beach at night. It rains."
BLUE = "A blue car stands on a beach. It rains."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diffusion")
    write_diffusion(folder, prediction="v_prediction")
    write_profile(folder)
    return folder


ANY = NullText(least_psnr=0, least_gain=0)  # random weights reconstruct nothing


def request(source: ImagePayload, *prompts: str, **changes: Any) -> EditRequest:
    edits = [PromptEdit(prompt=prompt) for prompt in prompts]
    return EditRequest(
        source=source,
        **{"caption": CAPTION, "edits": edits, "self_fractions": [0.5], "steps": 2, "null_text": ANY, **changes},
    )


@pytest.mark.slow
def test_a_reply_has_all_that_the_contract_promises(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            night = request(photo(45, 35), NIGHT, CAPTION, self_fractions=[0.0, 1.0], attention_to=["red car", "beach"])
            reply = await call(client, Services.edit, night)
            assert [len(row) for row in reply.images] == [2, 2]
            for image in [reply.reconstruction, *(image for row in reply.images for image in row)]:
                assert pixels(image).shape == (35, 45, 3)
            masks = [decode(mask.png, "L") for mask in reply.attention]
            assert [mask.shape for mask in masks] == [(35, 45)] * 2
            assert not np.array_equal(masks[0], masks[1])
            assert min(mask.max() for mask in masks) > 200
            assert reply.evaluations.model_dump() == {"inversion": 2, "source": 2, "edit": 4}
            assert (reply.caption, reply.prompts) == (CAPTION, [NIGHT, CAPTION])
            assert reply.keep_mask is None
            only_inverted = await call(client, Services.edit, request(night.source))
            assert only_inverted.images == []
            assert only_inverted.reconstruction == reply.reconstruction

    asyncio.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("at_once", [1, 2])
def test_requests_for_single_edits_share_one_inversion(folder: Path, at_once: int) -> None:
    async def scenario() -> None:
        app = create_app(settings(folder / "small.toml", batches_at_once=at_once, max_wait_seconds=0.2))
        async with serving(app) as client:
            source = photo(32, 32)
            whole = await call(client, Services.edit, request(source, NIGHT, BLUE, CAPTION))
            other = photo(32, 32)
            before = await computed_items(client)
            singles = await asyncio.gather(
                *(call(client, Services.edit, request(other, prompt)) for prompt in (NIGHT, BLUE, CAPTION))
            )
            assert await computed_items(client) - before == 1 + 3
            assert len({reply.reconstruction.png for reply in singles}) == 1
            assert len(whole.images) == len(singles)

    asyncio.run(scenario())


async def computed_items(client: httpx.AsyncClient) -> float:
    """The items of all batches so far."""
    lines = (await client.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("contrafact_batch_size_sum"))


@pytest.mark.slow
def test_deterministic_replies_do_not_depend_on_the_batch_or_the_cache(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(
            create_app(settings(folder / "small.toml", deterministic=True, max_wait_seconds=0.2))
        ) as client:
            first, other = photo(32, 32), photo(32, 32)
            null_text = request(first, NIGHT, BLUE, inversion="null_text", guidance=3)
            alone = await call(client, Services.edit, null_text)
        async with serving(
            create_app(settings(folder / "small.toml", deterministic=True, max_wait_seconds=0.2))
        ) as client:
            rendering = RenderRequest(source=other, renderings=[Rendering(prompt=NIGHT, seed=1)], steps=2)
            crowd = await asyncio.gather(
                call(client, Services.edit, request(other, BLUE, inversion="null_text", guidance=3)),
                client.post("/v1/renderings", content=rendering.model_dump_json()),
                call(client, Services.edit, request(other, NIGHT, CAPTION, guidance=3)),
                call(client, Services.edit, null_text),
            )
            assert crowd[-1] == alone
            assert await call(client, Services.edit, null_text) == alone

    asyncio.run(scenario())


@pytest.mark.slow
def test_renderings_know_nothing_of_edits(folder: Path) -> None:
    """Both use one UNet: what an edit injects must not stay behind in its layers."""

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            source = photo(32, 32)
            rendering = RenderRequest(source=source, renderings=[Rendering(prompt=NIGHT, seed=1)], steps=2)
            before = await client.post("/v1/renderings", content=rendering.model_dump_json())
            await call(client, Services.edit, request(source, BLUE, self_fractions=[1.0]))
            assert (await client.post("/v1/renderings", content=rendering.model_dump_json())).json() == before.json()

    asyncio.run(scenario())


def test_requests_that_cannot_be_edited_are_refused_with_a_reason(folder: Path) -> None:
    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            night = request(photo(32, 32), NIGHT)
            plain = night.model_dump(mode="json")
            many = [{"prompt": NIGHT}] * 4
            cases: list[tuple[dict[str, object], str]] = [
                ({"attention_to": ["zebra"]}, "no phrase “zebra”"),
                ({"control": "object"}, "segmenter"),
                ({"caption": "x" * 600}, "too long for the text encoder"),
                ({"edits": many, "self_fractions": [0.1, 0.3, 0.5, 0.7]}, "several requests"),
                ({"self_fractions": [1.5]}, "self_fractions"),
                ({"inversion": "magic"}, "inversion"),
                ({"seed": 1}, "unknown field seed"),
            ]
            for change, words in cases:
                reply = await client.post("/v1/edits", json={**plain, **change})
                assert reply.status_code == 422, reply.text
                assert words in reply.json()["detail"]

    asyncio.run(scenario())


def test_a_long_caption_has_its_null_arm_and_edits_beyond_what_is_read_are_refused_alone(folder: Path) -> None:
    """One edit in the last sentence of a long caption failed its whole source image, as did the null arm."""
    long = CAPTION + " It rains and rains on." * 30

    async def scenario() -> None:
        async with serving(create_app(settings(folder / "small.toml"))) as client:
            edits = request(photo(32, 32), long, long + " It snows.", BLUE + " It rains on.", self_fractions=[0.2, 0.6])
            reply = await call(client, Services.edit, edits.model_copy(update={"caption": long}))
            null, beyond, blue = reply.refusals
            assert (null, blue) == (None, None)
            assert "text encoder" in (beyond or "")
            assert [[image is not None for image in row] for row in reply.images] == [
                [True] * 2,
                [False] * 2,
                [True] * 2,
            ]

    asyncio.run(scenario())
