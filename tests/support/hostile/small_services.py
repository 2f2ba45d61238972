"""The four model services on loopback ports, each over its own small weights with random values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from fastapi import FastAPI

from caption_service.app import create_app as create_caption
from diffusion_service.app import create_app as create_diffusion
from evaluator_service.app import create_app as create_evaluator
from llm_service.app import create_app as create_llm
from shared.service.settings import ServiceSettings
from tests.support.listening import listen
from tests.support.paths import REPOSITORY
from tests.support.small_diffusion import write_diffusion, write_segmenter
from tests.support.small_evaluator import write_classifier, write_scorer
from tests.support.small_models import save_blip2, save_llama
from tests.support.small_profile import write_profile
from tests.support.work_site import wait_for

APPS: dict[str, Callable[[ServiceSettings], FastAPI]] = {
    "caption_service": create_caption,
    "llm_service": create_llm,
    "diffusion_service": create_diffusion,
    "evaluator_service": create_evaluator,
}
WEIGHTS = REPOSITORY / "tinyworld" / "weights"
SEGMENTER = """[diffusion]
keep_labels = ["object"]
segmenter = { path = "segmenter", licence = "none", gigabytes = 0.01 }
"""
MODEL = f"""[evaluator]
models_under_test.first = {{ path = "first", licence = "MIT", gigabytes = 0.01 }}
text_embedder = {{ path = "{WEIGHTS / "text_embeddings"}", licence = "none", gigabytes = 0.01 }}
"""
WORDS = f"""[language]
masked_words = {{ path = "{WEIGHTS / "masked_words"}", licence = "none", gigabytes = 0.01 }}
"""


def write_weights(folder: Path) -> Path:
    """Small weights for all four services, and their profile."""
    save_blip2(folder / "captioner")
    save_llama(folder / "language")
    write_diffusion(folder)
    write_segmenter(folder / "segmenter")
    write_classifier(folder / "first", 1)
    write_scorer(folder / "scorer")
    profile = write_profile(folder, caption_engine="blip2", language_engine="transformers")
    text = profile.read_text().replace("[diffusion]\n", SEGMENTER).replace("[evaluator]\n", MODEL)
    text = text.replace("[language]\n", WORDS)
    profile.write_text(text)
    return profile


@contextmanager
def serve_small(name: str, profile: Path) -> Iterator[httpx.Client]:
    """A client of one service, ready."""
    app = APPS[name](ServiceSettings(profile=str(profile), device="cpu", threads=1))
    with listen(app) as url, httpx.Client(base_url=url, timeout=120) as client:

        def ready() -> bool:
            reply = client.get("/readyz")
            assert reply.status_code == 200 or not reply.json().get("failed"), reply.json()["detail"]
            return reply.status_code == 200

        wait_for(ready)
        yield client
