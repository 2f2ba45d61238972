"""`contrafact doctor --try`: one image through real services, with messages, pictures and a page."""

from pathlib import Path

import pytest

from embedded.run import run_embedded
from gateway.model_services.clients import ModelServices
from gateway.trial.page import trial_page
from gateway.trial.try_image import TrialImage, try_image
from shared.images import encode
from shared.problems import InvalidInput, Malformed
from shared.profiles import load_profile
from tinyworld.objects.render import render
from tinyworld.objects.world import sample_scene


def test_one_image_goes_through_every_service(tmp_path: Path) -> None:
    scene = sample_scene("final-test", 3)
    image = TrialImage(encode(render(scene).image), "classify the main object", scene.label)
    profile = load_profile("tiny")
    with run_embedded(tmp_path / "system", "tiny") as system:
        services = ModelServices(system.service_urls, wait=600.0)
        try:
            steps = list(try_image(services, system.service_urls, profile, image, tmp_path / "trial"))
        finally:
            services.close()

    names = " ".join(step.name for step in steps)
    assert all(service in names for service in system.service_urls)
    timed = [step for step in steps if step.seconds is not None]
    assert all(step.memory is not None and step.memory > 2**20 for step in timed)
    assert not [step for step in timed if step.fault]
    saved = {picture for step in steps for picture in step.pictures}
    assert {"source.png"} < saved == {path.name for path in (tmp_path / "trial").iterdir()}
    results = {step.name: step for step in steps if step.name in profile.defaults.methods}
    assert results.keys() == set(profile.defaults.methods)
    page = trial_page(steps, "tiny")
    assert all(picture in page for picture in saved)


def test_services_that_do_not_answer_are_a_fault(tmp_path: Path) -> None:
    services = ModelServices({"evaluator_service": "http://127.0.0.1:9"}, wait=0.1)
    try:
        picture = encode(render(sample_scene("final-test", 3)).image)
        steps = list(try_image(services, {}, load_profile("tiny"), TrialImage(picture, "classify it"), tmp_path))
    finally:
        services.close()
    assert [bool(step.fault) for step in steps] == [False, True]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [(b"no image", "classify it"), (encode(render(sample_scene("final-test", 3)).image), "x")],
)
def test_what_no_job_would_take_is_refused(tmp_path: Path, data: bytes, sentence: str) -> None:
    services = ModelServices({})
    with pytest.raises((Malformed, InvalidInput)):
        list(try_image(services, {}, load_profile("tiny"), TrialImage(data, sentence), tmp_path))
    services.close()
