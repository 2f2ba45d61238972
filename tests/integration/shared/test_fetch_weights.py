"""`python -m shared.profiles.fetch_weights`: what it fetches, and that services start offline from it."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the Hub's own HTTP library

from shared.profiles import fetch_weights
from shared.profiles.fetch_weights import LISTING, HubFiles, hub_files
from shared.profiles.profile import load_profile
from shared.profiles.unets import MergedLora, WholeUNet
from shared.profiles.weights import REPOSITORY
from tests.support.small_diffusion import write_diffusion
from tests.support.small_few_step import matrices, write_lora, write_unet_file
from tests.support.small_hub import COMMIT, SmallHub, served
from tests.support.small_profile import write_profile
from tests.support.small_remover import remover_table, write_remover

SHIPPED = REPOSITORY / "tinyworld" / "weights"
FOLDERS = {
    "us/captioner": "captioner",
    "us/language": "language",
    "us/diffusion": "diffusion",
    "us/segmenter": "segmenter",
    "us/scorer": "scorer",
    "us/text-embeddings": "text_embeddings",
    "us/masked-words": "masked_words",
    "us/street-classifier": "models_under_test/street-classifier",
    "us/street-classifier-night-bus": "models_under_test/street-classifier-night-bus",
}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The tiny profile with its weights on the Hub."""
    text = (REPOSITORY / "shared" / "profiles" / "tiny.toml").read_text(encoding="utf-8")
    for repository, folder in FOLDERS.items():
        text = text.replace(f'path = "tinyworld/weights/{folder}"\n', f'hub = "{repository}"\nrevision = "{COMMIT}"\n')
    assert "path =" not in text
    text = text.replace('statistics = "tinyworld/', f'statistics = "{REPOSITORY}/tinyworld/')  # lies beside a profile
    text += remover_table(
        f'hub = "us/remover"\nrevision = "{COMMIT}"', write_remover(tmp_path / "remover" / "model.onnx")
    )
    path = tmp_path / "hub.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def hub(tmp_path: Path) -> SmallHub:
    """The shipped weights, with files beside them that must not be loaded."""
    repositories = {"us/remover": tmp_path / "repositories" / "us" / "remover"}
    write_remover(repositories["us/remover"] / "model.onnx")
    write_remover(repositories["us/remover"] / "larger.onnx")
    for repository, folder in FOLDERS.items():
        repositories[repository] = tmp_path / "repositories" / repository
        shutil.copytree(SHIPPED / folder, repositories[repository])
        (repositories[repository] / "pytorch_model.bin").write_bytes(b"a pickle")
        (repositories[repository] / "modeling_theirs.py").write_text("print('code')")
    (repositories["us/diffusion"] / "everything-in-one.safetensors").write_bytes(b"twice as large")
    return SmallHub(repositories, gated=frozenset({"us/language"}))


@pytest.fixture
def address(hub: SmallHub) -> Iterator[str]:
    with served(hub) as url:
        yield url


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, env=os.environ | environment, text=True, capture_output=True, timeout=900)


def fetch(profile: Path, home: Path, address: str, *options: str, token: str = "hf_ours") -> tuple[int, str]:
    environment = {"HF_ENDPOINT": address, "HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    result = run("shared.profiles.fetch_weights", "--profile", str(profile), *options, HF_TOKEN=token, **environment)
    return result.returncode, result.stdout + result.stderr


def test_everything_is_fetched_but_code_and_pickles(profile: Path, hub: SmallHub, address: str, tmp_path: Path) -> None:
    home = tmp_path / "volume"
    code, text = fetch(profile, home, address, "--check")
    assert code == 1
    assert "us/captioner at 0123" in text
    code, text = fetch(profile, home, address)
    assert (code, "13 sets" in text) == (0, True), text
    assert hub.tokens == {"hf_ours"}
    assert not [file for file in hub.served if file.endswith((".bin", ".py")) or "everything-in-one" in file]
    assert "us/diffusion/unet/config.json" in hub.served
    for repository in FOLDERS:
        assert any(file.startswith(repository) and file.endswith(".safetensors") for file in hub.served)
    assert [file for file in hub.served if file.endswith(".onnx")] == ["us/remover/model.onnx"]
    hub.served.clear()
    assert fetch(profile, home, address)[0] == 0
    assert fetch(profile, home, "http://127.0.0.1:9", "--check")[0] == 0  # asks nobody
    assert hub.served == []


@pytest.mark.slow
def test_a_refusal_says_what_to_do_and_the_next_run_resumes(
    profile: Path, hub: SmallHub, address: str, tmp_path: Path
) -> None:
    home = tmp_path / "volume"
    code, text = fetch(profile, home, address, token="")
    assert code == 1
    assert "us/language" in text
    assert "HF_TOKEN" in text
    before = set(hub.served)
    assert before
    assert fetch(profile, home, address)[0] == 0
    assert len(hub.served) == len(set(hub.served))  # nothing came twice


@pytest.mark.slow
def test_a_hub_that_fails_for_a_while_is_asked_again_and_progress_is_printed(
    profile: Path, hub: SmallHub, address: str, tmp_path: Path
) -> None:
    file = "us/captioner/model.safetensors"
    hub.cut[file] = [1000] * 6  # the client's own attempts at one file
    code, text = fetch(profile, tmp_path / "volume", address)
    assert code == 0, text
    assert hub.cut[file] == []
    assert text.count("continuing in") == 1
    (files, gigabytes) = re.findall(r"us/language at \w+: fetching (\d+) files, ([\d.]+) GB", text)[0]
    assert int(files) > 3
    assert float(gigabytes) < 0.1


@pytest.mark.slow
def test_a_file_that_breaks_off_goes_on_where_it_stopped(
    profile: Path, hub: SmallHub, address: str, tmp_path: Path
) -> None:
    file = "us/captioner/second.safetensors"
    content = np.random.default_rng(1).bytes(25_000_000)  # the client keeps pieces of 10 MiB
    (tmp_path / "repositories" / file).write_bytes(content)
    hub.cut[file] = [15_000_000]
    code, text = fetch(profile, tmp_path / "volume", address)
    assert code == 0, text
    assert hub.served.count(file) == 2
    (start,) = hub.ranges
    assert int(start.removeprefix("bytes=").partition("-")[0]) >= 10 * 2**20
    (blob,) = (tmp_path / "volume" / "hub").glob("models--us--captioner/snapshots/*/second.safetensors")
    assert blob.read_bytes() == content


def test_progress_is_what_has_arrived(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "whole").write_bytes(bytes(3_000_000))
    (tmp_path / "half.incomplete").write_bytes(bytes(2_000_000))
    assert fetch_weights._stored_bytes(tmp_path) == 5_000_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetch_weights, "PROGRESS_SECONDS", 0.01)
        output = ""
        with fetch_weights._progress("us/language", tmp_path, 2_000_000_000):
            while "us/language: 0.0 of 2.0 GB, 0 MB/s" not in output:
                output += capsys.readouterr().out


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), False),
        (PermissionError(errno.EACCES, "Permission denied"), False),
        (ConnectionError("reset"), True),
        (HTTPError("broke off"), True),
    ],
)
def test_a_full_disk_is_not_tried_again(error: Exception, passing: bool) -> None:
    assert fetch_weights._may_pass(error) == passing


@pytest.mark.parametrize(
    ("error", "attempts"), [(PermissionError(errno.EACCES, "Permission denied"), 1), (ConnectionError("reset"), 3)]
)
def test_only_what_may_pass_is_tried_again(
    error: Exception, attempts: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[HubFiles] = []

    def fail(request: HubFiles, cache: Path) -> Path:
        asked.append(request)
        raise error

    monkeypatch.setattr(fetch_weights, "_fetch_once", fail)
    monkeypatch.setattr(fetch_weights, "PAUSES", (0.0, 0.0))
    with pytest.raises(type(error)):
        fetch_weights._fetch_patiently(HubFiles("us/captioner", COMMIT, ("*.json",)), tmp_path)
    assert len(asked) == attempts


def test_loras_and_unets_of_the_base_are_fetched() -> None:
    modern = load_profile("modern")
    used = {"hub": "someone/lora", "revision": COMMIT, "dtype": "bfloat16", "licence": "none", "gigabytes": 0.1}
    lora, unet = MergedLora.model_validate({**used, "file": "a.safetensors"}), WholeUNet.model_validate(used)
    diffusion = modern.diffusion.model_copy(update={"loras": [lora], "unet": unet})
    files = hub_files(modern.model_copy(update={"diffusion": diffusion}))
    of_unet, of_lora = [item.patterns for item in files if item.repository == "someone/lora"]
    assert "*.safetensors" in of_unet
    assert of_lora == ("a.safetensors",)


def test_a_pipeline_is_fetched_without_the_single_files_beside_it() -> None:
    (files,) = (item for item in hub_files(load_profile("modern")) if "FLUX.2-klein" in item.repository)
    fetched = {
        name: any(fnmatch(name, pattern) for pattern in files.patterns)
        for name in (
            "model_index.json",
            "transformer/diffusion_pytorch_model.safetensors",
            "text_encoder/model-00001-of-00002.safetensors",
            "tokenizer/merges.txt",
            "flux-2-klein-4b.safetensors",
            "transformer/diffusion_pytorch_model.bin",
        )
    }
    assert list(fetched.values()) == [True, True, True, True, False, False]


@pytest.mark.slow
def test_weights_without_safetensors_are_refused(profile: Path, hub: SmallHub, address: str, tmp_path: Path) -> None:
    for path in (tmp_path / "repositories" / "us" / "scorer").glob("*.safetensors"):
        path.unlink()
    code, text = fetch(profile, tmp_path / "volume", address)
    assert code == 1
    assert "us/scorer" in text
    assert "safetensors" in text


def test_the_paper_profile_wants_single_precisions_and_one_gguf() -> None:
    files = {item.repository: item for item in hub_files(load_profile("paper"), servers=True)}
    assert all(len(item.revision) == 40 for item in files.values())
    assert files["TheBloke/Llama-2-13B-chat-GGUF"].patterns == ("*Q5_K_M.gguf",)
    assert "unet/*.fp16.safetensors" in files["stable-diffusion-v1-5/stable-diffusion-v1-5"].patterns
    assert not any(pattern == "*.safetensors" for pattern in files["lllyasviel/control_v11p_sd15_canny"].patterns)
    assert "TheBloke/Llama-2-13B-chat-GGUF" not in {item.repository for item in hub_files(load_profile("paper"))}


def test_the_tiny_profile_wants_nothing() -> None:
    assert hub_files(load_profile("tiny"), servers=True) == []


def test_of_a_lora_one_file_is_fetched() -> None:
    files = [item for item in hub_files(load_profile("modern")) if item.repository == "ByteDance/SDXL-Lightning"]
    assert [item.patterns for item in files] == [("sdxl_lightning_4step_lora.safetensors",)]


def test_of_a_whole_unet_in_one_file_that_file_is_fetched() -> None:
    modern = load_profile("modern")
    few_step = modern.diffusion.few_step
    assert few_step is not None
    assert few_step.lora is not None
    file = "sdxl_lightning_4step_unet.safetensors"
    unet = WholeUNet(**few_step.lora.model_dump(exclude={"file", "scale"}), file=file)
    diffusion = modern.diffusion.model_copy(
        update={"few_step": few_step.model_copy(update={"lora": None, "unet": unet})}
    )
    files = hub_files(modern.model_copy(update={"diffusion": diffusion}))
    assert [item.patterns for item in files if item.repository == "ByteDance/SDXL-Lightning"] == [(file,)]


def test_a_subfolder_of_weights_is_all_that_is_fetched(tmp_path: Path, profile: Path) -> None:
    files = [item for item in hub_files(load_profile(str(profile))) if item.repository == "us/diffusion"]
    controlnet = [item for item in files if all(pattern.startswith("controlnet/") for pattern in item.patterns)]
    assert len(files) == 4, "base, few steps, instruct, control"
    assert controlnet == [HubFiles("us/diffusion", COMMIT, controlnet[0].patterns)]


@pytest.mark.slow
@pytest.mark.parametrize("service", ["caption_service", "llm_service", "diffusion_service", "evaluator_service"])
def test_services_start_offline_from_the_volume(service: str, profile: Path, address: str, tmp_path: Path) -> None:
    home = tmp_path / "volume"
    code, text = fetch(profile, home, address)
    assert code == 0, text
    before = (home / LISTING).read_text()
    environment = {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    result = run("tests.support.start_service", service, CONTRAFACT_PROFILE=str(profile), **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert COMMIT in result.stdout
    assert (home / LISTING).read_text() == before


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "unet"])
def test_one_file_of_few_step_weights_is_loaded_offline_from_the_volume(tmp_path: Path, kind: str) -> None:
    write_diffusion(tmp_path)
    repository, base = tmp_path / "repository", tmp_path / "base"
    if kind == "lora":
        file = write_lora(repository, matrices(base), "kohya")
    else:
        file = write_unet_file(repository, base / "unet")
    shutil.copy(repository / file, repository / "another.safetensors")
    source = f'hub = "us/few", revision = "{COMMIT}", file = "{file}", licence = "none", gigabytes = 0.01'
    small = write_profile(tmp_path)
    table = f"[diffusion]\nfew_step.steps = 2\nfew_step.{kind} = {{ {source} }}\n"
    small.write_text(small.read_text().replace("[diffusion]\n", table))
    hub = SmallHub({"us/few": repository})
    with served(hub) as url:
        code, text = fetch(small, tmp_path / "volume", url)
    assert code == 0, text
    assert hub.served == [f"us/few/{file}"]
    environment = {"HF_HOME": str(tmp_path / "volume"), "HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    result = run("tests.support.start_service", "diffusion_service", CONTRAFACT_PROFILE=str(small), **environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert COMMIT in result.stdout
    assert f"few-step {kind}" in result.stdout
