"""Words for gaps (llm_service) and text embeddings (evaluator_service) over HTTP, on small untrained BERTs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from evaluator_service.app import create_app as evaluator
from evaluator_service.similarity import TextEmbedder
from llm_service.app import create_app as language
from shared.profiles.weights import Weights
from shared.schemas.evaluation import EmbedTextsRequest
from shared.schemas.language import FillReply, FillRequest, Gap
from shared.schemas.service import ServiceInfo
from shared.service.endpoints import Services
from shared.service.settings import LARGEST_SUBMISSION
from tests.support.service_settings import settings
from tests.support.serving import call, serving
from tests.support.small_evaluator import write_scorer
from tests.support.small_profile import write_profile
from tests.support.small_texts import save_masked_words, save_text_embedder

GAPS = [("A red ", " stands on a beach."), ("It is ", "."), ("A blue bus drives through a city at ", ".")]
TEXTS = ["car", "a red car", "a blue bus drives through a city at night", "car"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    save_masked_words(folder / "masked")
    save_text_embedder(folder / "embedder")
    write_scorer(folder / "scorer")
    profile = write_profile(folder)
    named = '{{ path = "{}", licence = "none", gigabytes = 0.01 }}\n'
    text = profile.read_text()
    text = text.replace("[diffusion]\n", f"masked_words = {named.format('masked')}[diffusion]\n")
    text = text.replace("[evaluator]\n", f"[evaluator]\ntext_embedder = {named.format('embedder')}")
    profile.write_text(text)
    return folder


async def filled(client: httpx.AsyncClient, gaps: list[tuple[str, str]], most: int = 5) -> FillReply:
    request = FillRequest(gaps=[Gap(before=before, after=after) for before, after in gaps], most=most)
    return await call(client, Services.fill, request)


async def embedded(client: httpx.AsyncClient, texts: list[str]) -> list[list[float]]:
    return (await call(client, Services.embed_texts, EmbedTextsRequest(texts=texts))).texts


def test_fillings_are_the_whole_words_that_the_model_finds_most_probable(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder / "masked")
    model = AutoModelForMaskedLM.from_pretrained(folder / "masked").eval()

    async def main() -> FillReply:
        async with serving(language(settings(folder / "small.toml"))) as client:
            return await filled(client, GAPS)

    reply = asyncio.run(main())
    assert [len(words) for words in reply.fillings] == [5, 5, 5]
    for (before, after), words in zip(GAPS, reply.fillings, strict=True):
        ids = tokenizer(f"{before}[MASK]{after}", return_tensors="pt").input_ids
        with torch.inference_mode():
            shares = model(ids).logits[0, int((ids[0] == tokenizer.mask_token_id).nonzero())].softmax(-1)
        ranked = [
            (tokenizer.convert_ids_to_tokens(int(place)), float(shares[place])) for place in shares.argsort().flip(0)
        ]
        whole = [(word, share) for word, share in ranked if word.isalpha() and len(word) > 1]
        assert [guess.word for guess in words] == [word for word, _ in whole[:5]]
        assert np.allclose([guess.probability for guess in words], [share for _, share in whole[:5]], atol=1e-6)


def test_embeddings_are_the_mean_of_the_last_states(folder: Path) -> None:
    tokenizer, model = (
        AutoTokenizer.from_pretrained(folder / "embedder"),
        AutoModel.from_pretrained(folder / "embedder"),
    )

    async def main() -> list[list[float]]:
        async with serving(evaluator(settings(folder / "small.toml"))) as client:
            return await embedded(client, TEXTS)

    rows = asyncio.run(main())
    assert rows[0] == rows[3] != rows[1]
    for text, row in zip(TEXTS, rows, strict=True):
        with torch.inference_mode():
            mean = model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        assert np.allclose(row, (mean / mean.norm()).numpy(), atol=1e-5), "padding changes nothing"


def test_replies_do_not_depend_on_company(folder: Path) -> None:
    async def main() -> None:
        fixed = settings(folder / "small.toml", deterministic=True, max_batch=3)
        async with serving(language(fixed)) as client:
            together = (await filled(client, GAPS)).fillings
            assert together == [(await filled(client, [gap])).fillings[0] for gap in GAPS]
        async with serving(evaluator(fixed)) as client:
            rows = await embedded(client, TEXTS)
        async with serving(evaluator(fixed)) as client:  # anew: the first one remembers texts
            assert rows == [(await embedded(client, [text]))[0] for text in TEXTS]

    asyncio.run(main())


def test_more_texts_than_the_queue_holds_are_embedded(folder: Path) -> None:
    async def main() -> list[list[float]]:
        async with serving(evaluator(settings(folder / "small.toml", capacity=LARGEST_SUBMISSION))) as client:
            return await embedded(client, [f"a {'red ' * (number % 5)}car {number}" for number in range(100)])

    assert len(asyncio.run(main())) == 100


def test_gaps_that_cannot_be_filled_are_refused_with_a_reason(folder: Path) -> None:
    cases = [("word " * 60, "the model reads 48"), ("a [MASK] and ", "control word")]

    async def main() -> None:
        async with serving(language(settings(folder / "small.toml"))) as client:
            for before, message in cases:
                reply = await client.post("/v1/fill", json={"gaps": [{"before": before, "after": ""}]})
                assert reply.status_code == 422
                assert message in reply.json()["detail"]
            info = ServiceInfo.model_validate_json((await client.get("/v1/info")).content)
            assert [item.role for item in info.weights] == ["language", "masked words"]

    asyncio.run(main())


def test_a_profile_without_these_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    write_profile(tmp_path)
    write_scorer(tmp_path / "scorer")

    async def main() -> None:
        async with serving(language(settings(tmp_path / "small.toml"))) as client:
            reply = await client.post("/v1/fill", json={"gaps": [{"before": "a", "after": "b"}]})
            assert reply.status_code == 422
            assert "[language.masked_words]" in reply.json()["detail"]
        async with serving(evaluator(settings(tmp_path / "small.toml"))) as client:
            reply = await client.post("/v1/text-embeddings", json={"texts": ["a"]})
            assert reply.status_code == 422
            assert "[evaluator.text_embedder]" in reply.json()["detail"]

    asyncio.run(main())


def test_another_pooling_than_the_mean_is_refused(tmp_path: Path) -> None:
    save_text_embedder(tmp_path / "cls", pooling="cls")
    with pytest.raises(ValueError, match="pool"):
        TextEmbedder(Weights(path=tmp_path / "cls", licence="none", gigabytes=0.01), device="cpu")
