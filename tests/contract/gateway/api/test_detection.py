"""A detection job over the public API, from boxes in people's formats to results and pages, with small services."""

from __future__ import annotations

import hashlib
import html
import io
import json
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pycocotools.coco import COCO

from embedded.run import run_embedded
from shared.media.box_formats import boxes_of
from shared.media.images import encode
from shared.schemas.masks import ALL_CLASSES
from shared.schemas.results import JobResults
from shared.schemas.service import SERVICES
from tests.support.archives import zipped
from tests.support.http_jobs import finished
from tests.support.small_services import DETECTED, DETECTOR, SmallServices, serve

SPEC: dict[str, Any] = {
    "task": "detect the vehicles",
    "models": [DETECTOR],
    "boxes": {},
    "label_map": {"automobile": "car"},
    "methods": [{"name": "dillema", "parameters": {"counterfactuals_per_image": 2, "steps": 2, "thresholds": {}}}],
    "design": "free",
}
WIDTH, HEIGHT = 40, 30
Box = tuple[int, int, int, int, str]  # left, top, right, bottom


def scene(number: int) -> tuple[bytes, list[Box]]:
    """A dark street with a red car on the left, and a green bus on the right of all but every third; the last is empty.

    A rendering adds up to 60 grey levels of noise, which wrap around: bright objects break into pieces.
    """
    random = np.random.default_rng(number)
    pixels, boxes = np.full((HEIGHT, WIDTH, 3), 20, np.uint8), []
    for place, name in enumerate(["automobile", "bus"][: 0 if number == 13 else 1 + (number % 3 > 0)]):
        left, top = 3 + 20 * place + int(random.integers(0, 4)), int(random.integers(2, 12))
        right, bottom = left + int(random.integers(8, 14)), top + int(random.integers(8, 16))
        pixels[top:bottom, left:right, place] = random.integers(160, 250)
        boxes.append((left, top, right, bottom, name))
    return encode(pixels), boxes


def images(count: int) -> dict[str, bytes]:
    return {f"images/{number:02}.png": scene(number)[0] for number in range(count)}


def coco(count: int) -> dict[str, bytes]:
    """COCO JSON beside the images."""
    ids = {"automobile": 3, "bus": 6, "train": 7}
    boxes = [(number, box) for number in range(count) for box in scene(number)[1]]
    return {
        "annotations/instances_val.json": json.dumps(
            {
                "images": [
                    {"id": 10 * number, "file_name": f"{number:02}.png", "width": WIDTH, "height": HEIGHT}
                    for number in range(count)
                ],
                "categories": [{"id": place, "name": name} for name, place in ids.items()],
                "annotations": [
                    {
                        "id": place, "image_id": 10 * number, "category_id": ids[name], "iscrowd": 0,
                        "bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top),
                    }
                    for place, (number, (left, top, right, bottom, name)) in enumerate(boxes)
                ],
            }
        ).encode()
    }  # fmt: skip


def yolo(count: int) -> dict[str, bytes]:
    files = {"data.yaml": b"names: [automobile, bus, train]\n"}
    for number in range(count):
        lines = [
            f"{['automobile', 'bus'].index(name)} {(left + right) / 2 / WIDTH} {(top + bottom) / 2 / HEIGHT} "
            f"{(right - left) / WIDTH} {(bottom - top) / HEIGHT}\n"
            for left, top, right, bottom, name in scene(number)[1]
        ]
        files[f"labels/{number:02}.txt"] = "".join(lines).encode()
    return files


def voc(count: int) -> dict[str, bytes]:
    return {
        f"Annotations/{number:02}.xml": (
            f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height></size>"
            + "".join(
                f"<object><name>{name}</name><bndbox><xmin>{left + 1}</xmin><ymin>{top + 1}</ymin>"
                f"<xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>"
                for left, top, right, bottom, name in scene(number)[1]
            )
            + "</annotation>"
        ).encode()
        for number in range(count)
    }


def manifest(count: int) -> dict[str, bytes]:
    rows = [
        {"file": f"images/{number:02}.png", "boxes": [{"box": box[:4], "label": box[4]} for box in scene(number)[1]]}
        for number in range(count)
    ]
    return {"manifest.jsonl": "\n".join(map(json.dumps, rows)).encode()}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serve(SmallServices()) as services,
        run_embedded(tmp_path_factory.mktemp("boxes"), service_urls=dict.fromkeys(SERVICES, services)) as system,
        httpx.Client(base_url=system.base_url, timeout=60) as client,
    ):
        yield client


def post(
    client: httpx.Client, files: Mapping[str, bytes], spec: Mapping[str, Any], path: str = "/jobs"
) -> httpx.Response:
    parts = {
        "images": ("set.zip", zipped(files, "set/"), "application/zip"),
        "spec": ("", json.dumps(spec).encode(), "application/json"),
    }
    return client.post(path, files=parts)


@pytest.fixture(scope="module")
def job(client: httpx.Client) -> str:
    reply = post(client, {**images(14), **coco(14)}, SPEC)
    assert reply.status_code == 202, reply.text
    detail = finished(client, reply.headers["Location"])
    assert (detail["state"], detail["kind"], detail["images"], detail["labelled"]) == ("done", "detection", 14, 14)
    assert detail["classes"] == ["car", "bus"], "no model knows trains, and nobody annotated trams"
    return str(detail["id"])


def test_results_have_recall_by_class_objects_and_average_precision(client: httpx.Client, job: str) -> None:
    page = client.get(f"/jobs/{job}/results", params={"limit": 50}).json()
    metrics = JobResults.model_validate(page["metrics"])
    (result,) = metrics.results
    found = result.detection
    assert found is not None
    assert (result.metric, result.relation, result.sources, result.segmentation) == ("recall", "labelled", 13, None)
    assert result.originals is not None
    assert (result.originals.standing, result.originals.sentence) == ("sound", "")
    whole = found.all_originals
    objects = sum(len(scene(number)[1]) for number in range(14))
    assert (whole.images, whole.objects, whole.found, whole.hallucinations) == (14, objects, objects, 0)
    assert (whole.precision.ap, whole.precision.ap50) == pytest.approx((1, 1))
    assert [of_class.objects for of_class in whole.classes] == [13, 8]
    assert set(found.best_scores) == {"car", "bus"}
    assert whole.sizes["small"].objects == objects
    assert found.originals.images == 14, "empty images count for hallucinations"
    arm = found.counterfactuals
    assert arm.found + arm.mislocated + arm.misclassified + arm.missed == arm.objects
    assert 0 < arm.found < arm.objects
    assert found.delta_ap is not None
    assert found.ap_interval is not None
    assert found.ap_interval.low <= found.delta_ap <= found.ap_interval.high
    assert {cell.cell.label for cell in result.cells} == {"car", "bus", ALL_CLASSES}
    assert {cell.cell.label for cell in found.hallucination_cells} == {ALL_CLASSES}
    assert max(cell.sources for cell in found.hallucination_cells) == 14, "one of them has no object"
    assert metrics.sensitivity is not None
    assert [shown.label for shown in metrics.sensitivity.classes] == ["bus", "car"]
    for view in page["counterfactuals"]:
        (opinion,) = view["predictions"]
        before, after = (opinion[arm]["detected"]["objects"] for arm in ("original", "counterfactual"))
        assert [thing["box"] for thing in before] == [thing["box"] for thing in after]
        assert opinion["flipped"] == any(
            one["outcome"] == "found" != other["outcome"] for one, other in zip(before, after, strict=True)
        )
    buses = client.get(f"/jobs/{job}/results", params={"class": "bus"}).json()["counterfactuals"]
    assert buses
    assert all(len(view["predictions"][0]["original"]["detected"]["objects"]) == 2 for view in buses)


@pytest.mark.slow
def test_the_originals_choose_the_scores_from_which_boxes_count(client: httpx.Client, job: str) -> None:
    """Boxes of originals have the score 1; of equally good scores the middle one is chosen, as the first job named."""
    spec = {**SPEC, "boxes": {"score": 0.99, "choose_scores": True}}
    done = finished(client, post(client, {**images(14), **coco(14)}, spec).headers["Location"])
    pages = [
        client.get(f"/jobs/{name}/results").json()["metrics"]["results"][0]["detection"] for name in (job, done["id"])
    ]
    assert (pages[1]["chosen"], pages[1]["scores"]) == (True, {"car": 0.5, "bus": 0.5})
    assert pages[0]["best_scores"] == pages[1]["scores"]
    assert pages[1]["counterfactuals"] == pages[0]["counterfactuals"], "which 0.99 would not find"
    assert "highest F1 on the originals" in client.get(f"/jobs/{done['id']}/report").text
    few = finished(client, post(client, {**images(4), **coco(4)}, spec).headers["Location"])
    (result,) = client.get(f"/jobs/{few['id']}/results").json()["metrics"]["results"]
    assert "scores" not in result["detection"], "4 originals tell too little"


@pytest.mark.slow
def test_images_are_chosen_by_error_and_size(client: httpx.Client, job: str) -> None:
    def views(**filters: str) -> dict[str, list[str]]:
        page = client.get(f"/jobs/{job}/results", params={"limit": 50, **filters})
        assert page.status_code == 200, page.text
        seen = {view["id"]: view["predictions"][0].get("counterfactual") for view in page.json()["counterfactuals"]}
        return {
            name: [
                *(thing["outcome"] for thing in it["detected"]["objects"]),
                *(e["why"] for e in it["detected"]["extras"]),
            ]
            for name, it in seen.items()
            if it
        }

    everything = views()
    for error in ("missed", "mislocated", "misclassified", "hallucination", "duplicate"):
        expected = {name for name, errors in everything.items() if error in errors}
        assert views(error=error).keys() == views(error=error, size="small").keys() == expected
        assert views(error=error, size="large") == {}
    lost = {name for name, errors in everything.items() if {"missed", "mislocated", "misclassified"} & {*errors}}
    assert views(size="small").keys() == lost != set()
    assert views(error="missed", on="original") == {}, "all is found there"
    assert f"/jobs/{job}/gallery?" in (page := client.get(f"/jobs/{job}/view").text)
    assert "error=missed" in page


def test_detectors_are_not_repaired(client: httpx.Client, job: str) -> None:
    reply = client.post(f"/jobs/{job}/repairs", json={"model": DETECTOR})
    assert (reply.status_code, "detectors cannot be repaired" in reply.text) == (422, True)
    assert "contrafact repair" not in client.get(f"/jobs/{job}/report", params={"format": "md"}).text


@pytest.mark.parametrize("boxes", [coco, yolo, voc, manifest])
def test_boxes_of_every_format_give_the_same_plan(client: httpx.Client, boxes: Any) -> None:
    reply = post(client, {**images(3), **boxes(3)}, SPEC, "/jobs?dry_run=true")
    assert reply.status_code == 200, reply.text
    plan = reply.json()
    assert (plan["kind"], plan["images"], plan["labelled"], plan["classes"]) == ("detection", 3, 3, ["car", "bus"])
    assert {shown["label"]: shown["sources"] for shown in plan["sensitivity"]["classes"]} == {"car": 3, "bus": 2}


def test_chosen_classes_leave_boxes_of_others_out(client: httpx.Client) -> None:
    plan = post(client, {**images(3), **coco(3)}, {**SPEC, "classes": ["bus"]}, "/jobs?dry_run=true").json()
    assert (plan["classes"], [shown["label"] for shown in plan["sensitivity"]["classes"]]) == (["bus"], ["bus"])
    assert any("'automobile'" in line for line in plan["test_set"])


def test_uploaded_images_may_have_boxes_in_json(client: httpx.Client) -> None:
    entries = []
    for number in range(2):
        data, boxes = scene(number)
        digest = hashlib.sha256(data).hexdigest()
        assert client.put(f"/images/{digest}", content=data).status_code in (200, 201, 204)
        entries.append({"digest": digest, "boxes": [{"box": box[:4], "label": box[4]} for box in boxes]})
    plan = client.post("/jobs?dry_run=true", json={**SPEC, "images": entries}).json()
    assert (plan["kind"], plan["labelled"], plan["classes"]) == ("detection", 2, ["car", "bus"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label_map": {}}, "'automobile'"),
        ({"models": ["m1"]}, "'m1' classifies"),
        ({"boxes": {"iou": 0}}, "iou"),
        ({"masks": {"classes": [{"name": "car", "index": 1}]}}, "leave one of the two out"),
        ({"ground_truth": "none"}, "`boxes` are ground truth"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(client: httpx.Client, changes: dict[str, Any], words: str) -> None:
    reply = post(client, {**images(2), **coco(2)}, {**SPEC, **changes})
    assert (reply.status_code, words in reply.json()["detail"].replace("\\", "")) == (422, True), reply.text


def test_a_detector_is_told_to_bring_boxes(client: httpx.Client) -> None:
    reply = post(client, images(2), SPEC)
    assert (reply.status_code, "data.yaml" in reply.text) == (422, True)


def test_without_boxes_what_the_detector_finds_on_the_original_must_stay(client: httpx.Client) -> None:
    spec = {name: value for name, value in SPEC.items() if name not in ("boxes", "label_map")}
    done = finished(client, post(client, images(4), spec).headers["Location"])
    assert (done["state"], done["labelled"], done["classes"]) == ("done", 0, DETECTED)
    (result,) = client.get(f"/jobs/{done['id']}/results").json()["metrics"]["results"]
    assert (result["relation"], result["metric"]) == ("metamorphic", "recall")
    assert result["detection"]["all_originals"]["missed"] == 0


def test_pages_and_report_show_boxes_and_what_became_of_the_objects(client: httpx.Client, job: str) -> None:
    text = html.unescape(client.get(f"/jobs/{job}/view").text)
    for words in ("Δrecall", "Object by object", "Hallucinations by value", "AP50"):
        assert words in text
    gallery = html.unescape(client.get(f"/jobs/{job}/gallery").text)
    pair = next(part.split('"')[0] for part in gallery.split('href="')[1:] if "/pairs/" in part.split('"')[0])
    shown = html.unescape(client.get(pair).text)
    assert "its boxes" in shown
    assert 'class="box found"' in shown
    lost = client.get(f"/jobs/{job}/results", params={"flipped": "true", "verdict": "counted"}).json()[
        "counterfactuals"
    ][0]
    crops = html.unescape(client.get(f"/jobs/{job}/pairs/{lost['id']}").text)
    assert crops.index("row crops") < crops.index("its boxes"), "what is lost comes first"
    assert f'<use href="#of-{lost["id"]}-{DETECTOR}-counterfactual"/>' in crops
    report = client.get(f"/jobs/{job}/report").text
    assert "Object by object" in report
    assert 'class="box' in report


def exported(client: httpx.Client, job: str, layout: str, folder: Path) -> dict[str, bytes]:
    reply = client.get(f"/jobs/{job}/export", params={"format": layout})
    assert reply.status_code == 200, reply.text
    with tarfile.open(fileobj=io.BytesIO(reply.content)) as archive:
        archive.extractall(folder, filter="data")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_exports_carry_the_boxes_to_every_arm(client: httpx.Client, job: str, tmp_path: Path) -> None:
    files = exported(client, job, "coco", tmp_path / "coco")
    assert files
    opened = COCO(str(tmp_path / "coco/annotations.json"))
    assert [category["name"] for category in opened.loadCats(opened.getCatIds())] == ["car", "bus"]
    arms = {"original": 0, "counterfactual": 0, "null_arm": 0}
    for image in opened.loadImgs(opened.getImgIds()):
        told = image["contrafact"]
        arms[told["arm"]] += 1
        truth = scene(int(told["source_name"].rpartition("/")[2][:2]))[1]
        boxes = [annotation["bbox"] for annotation in opened.loadAnns(opened.getAnnIds(imgIds=image["id"]))]
        assert boxes == [[left, top, right - left, bottom - top] for left, top, right, bottom, _ in truth]
        assert image["file_name"] in files
        assert told["arm"] == "original" or told["lineage_digest"]
    assert min(arms.values()) > 0
    files = exported(client, job, "folders", tmp_path / "folders")
    pictures = [name for name in files if name.endswith(".png")]
    by_image, read = boxes_of({name: data for name, data in files.items() if name[-4:] in (".txt", "yaml")}, pictures)
    assert read.classes == ("car", "bus")
    for name, boxed in zip(pictures, by_image, strict=True):
        assert boxed is not None
        assert len(boxed.boxes) == len(scene(int(name.rpartition("/")[2][:6]))[1])
    again = post(client, files, {**SPEC, "label_map": {}}, "/jobs?dry_run=true").json()
    assert (again["kind"], again["images"], again["classes"]) == ("detection", 14, ["car", "bus"])
    assert again["labelled"] == 14, "an image may be known to have no object"
