"""Photographs of 12 megapixels, upright, lying and panoramic, through the embedded system with the shipped models.

The two photographs of scikit-learn, scaled up to 4,000 × 3,000 with the noise of a sensor. The shipped models know a
drawn world only, so what they say of them means nothing; what is tested is that each image goes the whole way.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

from embedded.run import run_embedded
from shared.media.images import decode, encode
from tests.support.archives import zipped
from tests.support.http_jobs import finished
from tests.support.work_site import wait_for
from tinyworld.roads.demo import mask_spec
from tinyworld.roads.world import CLASSES

SIZE = (4_000, 3_000)
SCALED = (1_536, 2_048, 3)


def photographs() -> list[bytes]:
    """Two JPEGs of 12 megapixels and some 8 MB; as PNG each takes more than 20 MB."""
    files = []
    for number, pixels in enumerate(load_sample_images().images):
        large = np.asarray(Image.fromarray(pixels[:, :569]).resize(SIZE, Image.Resampling.BICUBIC))
        grain = np.random.default_rng(number).integers(-8, 9, large.shape, dtype=np.int16)
        buffer = io.BytesIO()
        Image.fromarray((large + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=92)
        files.append(buffer.getvalue())
    return files


def mask(number: int) -> bytes:
    """Sky above, a road below, and a void border: what such a photograph is marked with by hand."""
    classes = np.full(SIZE[::-1], CLASSES.index("road"), np.uint8)
    classes[: 1_000 + 200 * number] = CLASSES.index("sky")
    classes[:, :5] = CLASSES.index("void")
    buffer = io.BytesIO()
    Image.fromarray(classes).save(buffer, "PNG")
    return buffer.getvalue()


def run_job(client: httpx.Client, archive: bytes, spec: dict[str, Any]) -> dict[str, Any]:
    """A job that ended well, and how many counterfactuals were rendered; a dry run told that both are scaled.

    The profile knows no photographs, so the job is forced.
    """
    spec = {**spec, "outside_domain": True}
    wait_for(lambda: client.get("/models").status_code == 200)
    files: dict[str, Any] = {
        "images": ("set.zip", archive),
        "spec": ("", json.dumps(spec).encode(), "application/json"),
    }
    dry = client.post("/jobs", files=files, params={"dry_run": "true"})
    assert dry.status_code == 200, dry.text
    assert (dry.json()["images"], dry.json()["at_working_side"]) == (2, 2)
    reply = client.post("/jobs", files=files)
    assert reply.status_code == 202, reply.text
    job = str(reply.json()["id"])
    detail = finished(client, f"/jobs/{job}")
    assert (detail["state"], detail["failures"]) == ("done", [])
    assert detail["progress"]["images"]["done"] == 2
    return {"job": job, "rendered": rendered(client, job)}


def rendered(client: httpx.Client, job: str) -> int:
    """How many counterfactuals have an image; each is of its source's size."""
    results = client.get(f"/jobs/{job}/results", params={"limit": 200, "verdict": "any"}).json()
    shown = [view for view in results["counterfactuals"] if view["image"] is not None]
    for view in shown:
        for digest in (view["source"]["image"], view["image"]):
            assert decode(client.get(f"/images/{digest}").content).shape == SCALED
    return len(shown)


@pytest.mark.slow
def test_classifiers_are_tested_on_photographs_of_12_megapixels(tmp_path: Path) -> None:
    bus, car = photographs()
    archive = zipped({"bus/0.jpg": bus, "car/1.jpg": car})
    methods = [
        {"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 2}},
        {"name": "corruptions", "parameters": {"corruptions": ["gaussian_noise"]}},
    ]
    spec = {"task": "classify the vehicle", "methods": methods, "models": ["street-classifier"]}
    with (
        run_embedded(tmp_path) as system,
        httpx.Client(base_url=system.base_url, timeout=300, trust_env=False) as client,
    ):
        ran = run_job(client, archive, spec)
        assert ran["rendered"] >= 10, "the corruptions alone are ten"
        assert client.get(f"/jobs/{ran['job']}/report").status_code == 200
        for url in system.service_urls.values():
            page = httpx.get(f"{url}/v1/info", headers={"Host": "rebound.example"}, trust_env=False, timeout=300)
            assert page.status_code == 403


@pytest.mark.slow
def test_segmenters_are_tested_on_photographs_of_12_megapixels_with_masks(tmp_path: Path) -> None:
    files = {f"images/{n}.jpg": data for n, data in enumerate(photographs())}
    archive = zipped(files | {f"masks/{n}.png": mask(n) for n in range(2)})
    methods = [
        {"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 2}},
        {"name": "corruptions", "parameters": {"corruptions": ["fog"]}},
    ]
    spec = {"task": "segment the road scene", "masks": mask_spec().model_dump(exclude_none=True), "methods": methods}
    with (
        run_embedded(tmp_path, "tiny-roads") as system,
        httpx.Client(base_url=system.base_url, timeout=300, trust_env=False) as client,
    ):
        ran = run_job(client, archive, spec)
        assert ran["rendered"] >= 10
        assert client.get(f"/jobs/{ran['job']}/report").status_code == 200
        exported = client.get(f"/jobs/{ran['job']}/export", params={"format": "coco", "verdict": "any"})
        assert exported.status_code == 200


ODD_SIZES = ((640, 427), (427, 640), (8_000, 500))
KEPT_SIZES = {(640, 427), (427, 640), (2_048, 128)}


def odd_photographs() -> list[bytes]:
    """A lying and an upright photograph, and a panorama, as JPEG."""
    picture = Image.fromarray(load_sample_images().images[0])
    return [jpeg(picture.resize(size, Image.Resampling.BICUBIC)) for size in ODD_SIZES]


def jpeg(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def sizes_of_pairs(client: httpx.Client, job: str) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    """Width and height of each source with those of each of its counterfactuals and null arms."""
    assert finished(client, f"/jobs/{job}")["state"] == "done"
    views = client.get(f"/jobs/{job}/results", params={"limit": 200, "verdict": "any"}).json()["counterfactuals"]
    pairs = {
        (view["source"]["image"], digest)
        for view in views
        for digest in (view["image"], view["null_image"])
        if digest is not None
    }
    return {(size_of(client, source), size_of(client, digest)) for source, digest in pairs}


def size_of(client: httpx.Client, digest: str) -> tuple[int, int]:
    with Image.open(io.BytesIO(client.get(f"/images/{digest}").content)) as image:
        return image.size


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classification", "segmentation"])
def test_counterfactuals_have_the_size_of_their_photograph(kind: str, tmp_path: Path) -> None:
    methods = [
        {"name": "dillema", "parameters": {"counterfactuals_per_image": 1, "steps": 2}},
        {"name": "corruptions", "parameters": {"corruptions": ["fog"]}},
    ]
    files = {f"images/{n}.jpg": data for n, data in enumerate(odd_photographs())}
    spec: dict[str, Any] = {"task": "segment the road scene", "methods": methods, "outside_domain": True}
    if kind == "segmentation":
        for n, (width, height) in enumerate(ODD_SIZES):
            files[f"masks/{n}.png"] = encode(np.full((height, width), CLASSES.index("road"), np.uint8))
        spec["masks"] = mask_spec().model_dump(exclude_none=True)
    else:
        spec |= {"task": "classify the vehicle", "models": ["street-classifier"]}
    with (
        run_embedded(tmp_path, "tiny" if kind == "classification" else "tiny-roads") as system,
        httpx.Client(base_url=system.base_url, timeout=300, trust_env=False) as client,
    ):
        wait_for(lambda: client.get("/models").status_code == 200)
        parts: dict[str, Any] = {
            "images": ("set.zip", zipped(files)),
            "spec": ("", json.dumps(spec).encode(), "application/json"),
        }
        reply = client.post("/jobs", files=parts)
        assert reply.status_code == 202, reply.text
        pairs = sizes_of_pairs(client, reply.json()["id"])
    assert {source for source, _ in pairs} == KEPT_SIZES
    assert all(source == other for source, other in pairs)
