"""`contrafact doctor --try`: one image through real services, with messages, pictures and a page."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image
from typer.testing import CliRunner

from embedded.run import Embedded, run_embedded
from gateway.commands import app
from gateway.model_services.clients import ModelServices
from gateway.trial.steps import Step
from gateway.trial.try_image import TrialImage, trial_page, try_image
from shared.media.images import encode
from shared.problems import InvalidInput, Malformed
from shared.profiles.profile import load_profile
from shared.schemas.service import ServiceName
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene

SCENE = sample_scene("final-test", 3)
IMAGE = TrialImage(encode(render(SCENE).image), "classify the main object", SCENE.label)
NOBODY = "http://127.0.0.1:9"
SERVICES: tuple[ServiceName, ...] = ("caption_service", "llm_service", "diffusion_service", "evaluator_service")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with run_embedded(tmp_path_factory.mktemp("system"), "tiny") as running:
        yield running


def trial(urls: dict[ServiceName, str], folder: Path, *methods: str, wait: float = 600.0) -> list[Step]:
    services = ModelServices(urls, wait=wait)
    try:
        return list(try_image(services, urls, load_profile("tiny"), IMAGE, folder, methods=methods))
    finally:
        services.close()


@pytest.mark.slow
def test_one_image_goes_through_every_service(system: Embedded, tmp_path: Path) -> None:
    steps = trial(dict(system.service_urls), tmp_path, "dillema", "corruptions")

    names = " ".join(step.name for step in steps)
    assert all(service in names for service in system.service_urls)
    assert {"dillema: diffusion_service /v1/renderings", "corruptions: diffusion_service /v1/corruptions"} <= {
        step.name for step in steps
    }
    timed = [step for step in steps if step.seconds is not None]
    assert all(step.memory is not None and step.memory > 2**20 for step in timed)
    assert not [step for step in timed if step.fault]
    own = [(step.name, step.outcome.split(", ")[0]) for step in steps if step.name in ("dillema", "corruptions")]
    assert [name for name, _ in own] == ["dillema"] * 2 + ["corruptions"] * 2
    assert all(outcome == "started" for _, outcome in own[::2])
    assert all(outcome.endswith(" edits") for _, outcome in own[1::2]), "each method has a result"
    saved = {picture for step in steps for picture in step.pictures}
    assert {"source.png"} < saved == {path.name for path in tmp_path.iterdir()}
    page = trial_page(steps, "tiny")
    assert all(picture in page for picture in saved)
    edits = [step for step in steps if ": edit " in step.name]
    assert edits
    rendered = [step.outcome for step in edits if step.name.startswith("dillema")]
    assert rendered
    assert all("structure 0." in outcome and "(at least " in outcome for outcome in rendered), "scores with thresholds"
    terms = {step.name.partition(":")[0]: digital_source(tmp_path / step.pictures[0]) for step in edits}
    assert terms == {"dillema": "trainedAlgorithmicMedia", "corruptions": "algorithmicallyEnhanced"}


@pytest.mark.slow
def test_the_command_tries_the_system_of_a_directory(
    system: Embedded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`contrafact serve` chooses the ports of its services, so no environment names them."""
    for name in SERVICES:
        monkeypatch.delenv(f"CONTRAFACT_{name.removesuffix('_service').upper()}_URL", raising=False)
    monkeypatch.setenv("CONTRAFACT_PROFILE", "paper")
    (tmp_path / "image.png").write_bytes(IMAGE.data)
    words = ["doctor", "--directory", str(system.directory), "--try", str(tmp_path / "image.png")]
    words += ["--method", "corruptions", "--out", str(tmp_path / "trial")]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    assert "corruptions: diffusion_service /v1/corruptions" in ended.output
    assert "trial of profile tiny" in (tmp_path / "trial" / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_refusal_has_its_reason_and_only_images_count(system: Embedded, tmp_path: Path) -> None:
    """`label` refuses by rank too: "refused by label; label 0.12 (at least 0.07)" contradicted itself."""
    urls = dict(system.service_urls)
    services = ModelServices(urls)
    wrong = TrialImage(IMAGE.data, IMAGE.task_description, "boat" if SCENE.label != "boat" else "car")
    try:
        steps = list(try_image(services, urls, load_profile("tiny"), wrong, tmp_path, methods=["dillema"]))
    finally:
        services.close()
    refused = [step.outcome for step in steps if "refused by label" in step.outcome]
    assert refused
    assert all("another class is more probable" in text or "probability of only" in text for text in refused)
    rendered = [step for step in steps if step.name.startswith("dillema: edit")]
    assert all("refused by" in step.outcome for step in rendered)
    (fault,) = [step.fault for step in steps if step.fault.startswith("no image passed the checks")]
    counts = re.findall(r" (\d+)[,)]", fault.partition(": ")[0])
    assert sum(map(int, counts)) == len(rendered)


def digital_source(picture: Path) -> str:
    """The digital source type in a picture's XMP, without its prefix."""
    with Image.open(picture) as image:
        packet = ElementTree.fromstring(image.info["XML:com.adobe.xmp"])
    (term,) = [
        value
        for element in packet.iter()
        for name, value in element.attrib.items()
        if name.endswith("}DigitalSourceType")
    ]
    return term.rpartition("/")[2]


@pytest.mark.slow
def test_without_captioner_the_other_services_are_tried(system: Embedded, tmp_path: Path) -> None:
    steps = trial({**system.service_urls, "caption_service": NOBODY}, tmp_path, "dillema", wait=0.1)
    failed = [step for step in steps if step.fault and step.seconds is not None]
    assert [step.name for step in failed] == ["dillema: caption_service /v1/captions"], "a failed call is a step"
    assert SCENE.label in failed[0].outcome
    later = {step.name for step in steps if step.seconds is not None and not step.fault}
    assert "dillema: llm_service /v1/generate" in later


def test_absent_services_are_named_and_called_once(tmp_path: Path) -> None:
    urls = dict.fromkeys(SERVICES, NOBODY)
    steps = trial(urls, tmp_path, wait=0.1)
    by_name = {step.name: step for step in steps}
    assert by_name["models under test"].fault
    assert all(by_name[method].fault for method in ("dillema", "lance", "instruct", "corruptions"))
    failed = [step.name for step in steps if step.outcome.startswith("failed") and step.seconds is not None]
    assert len({name.split(": ")[1] for name in failed}) == len(failed), "an absent service is called once"
    with pytest.raises(InvalidInput, match="unknown method"):
        trial(urls, tmp_path, "dilema", wait=0.1)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(b"no image", "classify it"), (IMAGE.data, "x")],
)
def test_what_no_job_would_take_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    services = ModelServices({"evaluator_service": NOBODY}, wait=0.1)
    with pytest.raises((Malformed, InvalidInput)):
        list(try_image(services, {}, load_profile("tiny"), TrialImage(data, sentence), tmp_path))
    services.close()
