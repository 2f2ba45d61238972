"""`contrafact` against a running system: data on stdout, the rest on stderr, exit codes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from embedded.run import run_embedded
from gateway.report.build import build_report
from shared.problems import InvalidInput
from shared.schemas.service import SERVICES
from tests.support.archives import zipped
from tests.support.command_line import contrafact
from tests.support.drawn_job import add_drawn_job
from tests.support.gateway_under_test import picture, serve_gateway
from tests.support.small_services import SmallServices, serve

TASK = ["--task", "classify the vehicle"]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The whole system, with services that answer by arithmetic."""
    directory = tmp_path_factory.mktemp("embedded")
    with (
        serve(SmallServices()) as services,
        run_embedded(directory, service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        yield system.base_url


@pytest.fixture
def testset(tmp_path: Path) -> Path:
    folder = tmp_path / "testset"
    for name, shade in (("car/1.png", 1), ("car/2.png", 2), ("bus/1.png", 3)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(shade))
    (folder / "car" / "notes.txt").write_text("not an image")
    return folder


def test_a_job_from_a_folder_to_its_report(url: str, testset: Path, tmp_path: Path) -> None:
    lenient = ["--set", 'thresholds={"structure": {"default": 0}}']
    options = [
        "--set",
        "counterfactuals_per_image=1",
        "--model",
        "m1",
        "--seed",
        "3",
        "--value",
        "weather=rain",
        *lenient,
    ]
    stdout, stderr = contrafact(url, "submit", testset, *TASK, *options, "--wait")
    job, *lines = stdout.splitlines()
    assert "3 of 3 images done" in stderr
    assert "images done" not in stdout
    gallery = stderr.partition("first counterfactual after ")[2].split()[2]
    page = httpx.get(gallery)
    assert (page.status_code, "/jobs/" + job in gallery, 'class="card' in page.text) == (200, True, True)
    assert "m1 under dillema" in "\n".join(lines)
    detail = json.loads(contrafact(url, "status", job, "--json")[0])
    assert (detail["state"], detail["models"], detail["seed"]) == ("done", ["m1"], 3)
    assert detail["methods"][0]["parameters"]["counterfactuals_per_image"] == 1
    assert (detail["images"], detail["labelled"]) == (3, 3)
    assert "3 done" in contrafact(url, "status", job)[0]
    rows = [json.loads(line) for line in contrafact(url, "results", job, "--json")[0].splitlines()]
    assert {row["source"]["name"] for row in rows} == {"testset/bus/1.png", "testset/car/1.png", "testset/car/2.png"}
    buses = contrafact(url, "results", job, "--where", "class=bus", "--json")[0].splitlines()
    assert len(buses) == 1
    assert "sunny → " in contrafact(url, "results", job)[0]
    out = tmp_path / "report.html"
    assert contrafact(url, "report", job, "--out", out)[0].strip() == str(out)
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    for command in (("report", job), ("export", job)):
        path = tmp_path / "new" / command[0] / "file"
        assert contrafact(url, *command, "--out", path)[0].strip() == str(path)
        assert path.stat().st_size > 0
        below_a_file = out / "file"
        assert f"{below_a_file} cannot be written" in contrafact(url, *command, "--out", below_a_file, code=2)[1]
    assert contrafact(url, "report", job, "--format", "md", "--out", "-")[0].startswith("# classify")
    assert json.loads(contrafact(url, "report", job, "--format", "json", "--out", "-")[0])["results"]["sources"] == 3
    assert job in contrafact(url, "list")[0]
    contrafact(url, "cancel", job, code=3)
    assert "no image" in contrafact(url, "retry", job, code=3)[1]
    contrafact(url, "delete", job)
    assert "there is no job" in contrafact(url, "status", job, code=3)[1]


@pytest.mark.slow
def test_a_job_without_successful_images_exits_with_its_reason_and_a_code(testset: Path, tmp_path: Path) -> None:
    small = SmallServices()
    small.troubles = [InvalidInput("this picture is refused")] * 9
    with (
        serve(small) as services,
        run_embedded(tmp_path / "data", service_urls=dict.fromkeys(SERVICES, services)) as system,
    ):
        submitted = ["submit", testset, *TASK, "--model", "m1", "--design", "free", "--wait"]
        job, *lines = contrafact(system.base_url, *submitted, code=1)[0].splitlines()
        assert "3: this picture is refused" in [line.strip() for line in lines]
        view = json.loads(contrafact(system.base_url, "status", job, "--json", code=1)[0])
        assert (view["state"], view["report"]) == ("failed", f"/jobs/{job}/report")
        assert "this picture is refused" in contrafact(system.base_url, "report", job, "--out", "-")[0]


def test_archives_manifests_and_keys(url: str, tmp_path: Path) -> None:
    (tmp_path / "set.zip").write_bytes(zipped({"1.png": picture(1), "2.png": picture(2)}))
    (tmp_path / "labels.jsonl").write_text('{"file": "1.png", "label": "automobile"}\n{"file": "2.png"}\n')
    options = ["--labels", tmp_path / "labels.jsonl", "--label-map", "automobile=car", "--key", "k", "--model", "m1"]
    jobs = [json.loads(contrafact(url, "submit", tmp_path / "set.zip", *TASK, *options, "--json")[0]) for _ in range(2)]
    assert jobs[0]["id"] == jobs[1]["id"]
    assert (jobs[0]["images"], jobs[0]["labelled"]) == (2, 1)
    unlabelled, stderr = contrafact(url, "submit", tmp_path / "set.zip", *TASK, "--no-models", "--json")
    assert "uploading set.zip  0 bytes of" in stderr
    assert "uploaded set.zip" in stderr
    assert json.loads(unlabelled)["id"] != jobs[0]["id"]
    assert (json.loads(unlabelled)["models"], json.loads(unlabelled)["labelled"]) == ([], 0)


@pytest.mark.slow
def test_the_manifest_in_a_folder_is_read_as_in_an_archive(url: str, testset: Path, tmp_path: Path) -> None:
    manifest = testset / "manifest.csv"
    manifest.write_text("file,label,group\ncar/1.png,bus,a\ncar/2.png,,a\nbus/1.png,,\n")
    shutil.make_archive(str(tmp_path / "set"), "zip", testset)
    submit = ["submit", testset, *TASK, "--no-models", "--json"]
    stdout, stderr = contrafact(url, *submit)
    archive = contrafact(url, "submit", tmp_path / "set.zip", *TASK, "--no-models", "--json")[0]
    assert [json.loads(reply)["labelled"] for reply in (stdout, archive)] == [1, 1]
    assert "labels are read from 'testset/manifest.csv'" in stderr
    assert "1 left out, no image: 'testset/car/notes.txt'" in stderr
    planned = json.loads(contrafact(url, *submit, "--dry-run")[0])["test_set"]
    assert planned[0] == "3 images used, 1 with ground truth"
    sent = json.loads(contrafact(url, "submit", tmp_path / "set.zip", *TASK, "--no-models", "--json", "--dry-run")[0])
    assert [line.replace("testset/", "") for line in planned] == sent["test_set"]
    assert f"labels are read from '{manifest}'" in contrafact(url, *submit, "--labels", manifest)[1]
    images = sorted(testset.glob("*/*.png"))
    manifest.write_text("file,label\n1.png,car\n2.png,car\n")
    beside = contrafact(url, "submit", images[1], images[2], manifest, *TASK, "--no-models", "--json")[0]
    assert (json.loads(beside)["images"], json.loads(beside)["labelled"]) == (2, 2)
    manifest.write_text("file,label,group\ncar/1.png,bus,a\ncar/2.png,,a\nbus/1.png,,\n")
    (testset / "other.csv").write_text(manifest.read_text())
    assert "more than one manifest" in contrafact(url, *submit, "--labels", testset / "other.csv", code=3)[1]
    manifest.write_text("file,mask\ncar/1.png,a.png\ncar/2.png,\nbus/1.png,\n")
    assert "names masks" in contrafact(url, *submit, code=3)[1]


@pytest.mark.slow
def test_the_same_command_finds_its_job_and_again_starts_another(url: str, testset: Path, tmp_path: Path) -> None:
    shutil.make_archive(str(tmp_path / "set"), "zip", testset)
    for images in (testset, tmp_path / "set.zip"):
        command = ["submit", images, *TASK, "--no-models"]
        ids = [contrafact(url, *command, *options)[0].strip() for options in ([], [], ["--again"], ["--seed", "1"])]
        assert ids[0] == ids[1]
        assert len(set(ids)) == 3
        contrafact(url, *command, "--wait")
        assert "--again" in contrafact(url, *command)[1]


@pytest.mark.slow
def test_the_catalogue(url: str) -> None:
    assert "counterfactuals_per_image" in contrafact(url, "methods")[0]
    assert "street-classifier" in contrafact(url, "models")[0]
    assert json.loads(contrafact(url, "models", "--json")[0])["models"]


@pytest.mark.slow
def test_mistakes_end_with_a_sentence_and_a_code(url: str, testset: Path, tmp_path: Path) -> None:
    contrafact(url, "submit", testset, code=2)  # no task
    assert "not NAME=VALUE" in contrafact(url, "submit", testset, *TASK, "--set", "steps", code=2)[1]
    assert "does not use" in contrafact(url, "submit", testset, *TASK, "--set", "lance.steps=1", code=2)[1]
    assert "unknown method 'paint'" in contrafact(url, "submit", testset, *TASK, "--method", "paint", code=3)[1]
    assert "unknown field step" in contrafact(url, "submit", testset, *TASK, "--set", "step=1", code=3)[1]
    assert "nothing answers" in contrafact("http://127.0.0.1:9", "list", code=4)[1]


def test_a_budget_that_is_too_small_is_refused_before_the_upload(url: str, testset: Path) -> None:
    unseen = picture(77)
    (testset / "car" / "unseen.png").write_bytes(unseen)
    stderr = contrafact(url, "submit", testset, *TASK, "--design", "balanced", "--budget", "4", code=3)[1]
    assert "`budget` is 4" in stderr
    assert "uploading" not in stderr
    assert httpx.head(f"{url}/images/{hashlib.sha256(unseen).hexdigest()}").status_code == 404


@pytest.mark.parametrize("kind", ["zip", "gztar"])
@pytest.mark.parametrize("design", ["balanced", "adaptive"])
def test_a_budget_that_is_too_small_is_refused_before_an_archive_is_sent(
    url: str, testset: Path, tmp_path: Path, kind: str, design: str
) -> None:
    archive = shutil.make_archive(str(tmp_path / "packed"), kind, testset.parent, testset.name)
    stderr = contrafact(url, "submit", archive, *TASK, "--design", design, "--budget", "4", code=3)[1]
    assert "budget" in stderr
    assert "packed" not in stderr, "the display of the upload names the archive"


@pytest.mark.slow
def test_an_adaptive_job_takes_one_image_of_each_group(url: str, testset: Path) -> None:
    """Groups were refused: the mean of a group changes as long as images of it are rendered."""
    options = ["--design", "adaptive", "--value", "weather=night", "--group-by", "folder", "--dry-run", "--json"]
    for folder in ("car", "bus"):
        (testset / folder / "two").mkdir()
        for number in range(3):
            (testset / folder / "two" / f"{number}.png").write_bytes(picture(200 + number + 10 * (folder == "bus")))
    plan = json.loads(contrafact(url, "submit", testset, *TASK, *options)[0])
    assert (plan["images"], plan["groups"]) == (4, 4)
    assert any("another image of its group" in line for line in plan["test_set"])


def test_files_that_are_no_images_are_left_out_and_named(url: str, testset: Path) -> None:
    for name in ("bad.png", "worse.png"):
        (testset / "bus" / name).write_bytes(b"junk")
    plan = json.loads(contrafact(url, "submit", testset, *TASK, "--dry-run", "--json")[0])
    assert (plan["images"], plan["labelled"]) == (3, 3)
    assert any("2 left out" in line and "'testset/bus/bad.png'" in line for line in plan["test_set"])
    for file in testset.rglob("*.png"):
        file.write_bytes(b"junk")
    stderr = contrafact(url, "submit", testset, *TASK, "--dry-run", code=3)[1]
    assert "5 of 5 files cannot be used" in stderr


@pytest.mark.slow
def test_findings_are_a_table_and_sentences(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store)
        base_url = str(gateway.client.base_url)
        assert "findings are available" in contrafact(base_url, "findings", "drawn")[1]
        build_report(gateway.context.sessions, gateway.context.store, "drawn", [])
        table = contrafact(base_url, "findings", "drawn")[0]
        assert "night-bus under dillema" in table
        assert "• `bus` at night is not recognised" in table
        assert "to night (time of day)" in table
        assert "Not settled: `car`" in table.partition("sound under dillema")[2]
        assert json.loads(contrafact(base_url, "findings", "drawn", "--json")[0])["sources"] == 48


@pytest.mark.slow
def test_the_suffix_gives_the_format_of_a_report(tmp_path: Path) -> None:
    with serve_gateway(tmp_path) as gateway:
        add_drawn_job(gateway.context.sessions, gateway.context.store)
        build_report(gateway.context.sessions, gateway.context.store, "drawn", [])
        for name, options, first in (
            ("report.md", [], "# "),
            ("report.JSON", [], "{"),
            ("report.htm", [], "<!doctype html>"),
            ("page.md", ["--format", "html"], "<!doctype html>"),
        ):
            out = tmp_path / name
            contrafact(str(gateway.client.base_url), "report", "drawn", "--out", out, *options)
            assert out.read_text(encoding="utf-8").startswith(first)
