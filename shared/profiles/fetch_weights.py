"""`python -m shared.profiles.fetch_weights`: download a profile's weights from the Hub into `HF_HOME`.

It is the one step of a deployment that needs the network and, for gated weights, a Hub token (`HF_TOKEN`). The services
then run offline from the same folder, read-only. It fetches safetensors, a background remover's ONNX file,
configurations and tokenizers at the commits that the profile names, never code or pickles. `--check` verifies, without
network, that everything is there.

It prints how much has arrived, tries again when the network or the Hub fails for a while, and continues where the last
attempt stopped, also after a restart.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HOME
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError comes from its HTTP library
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from shared.problems import RETRIED
from shared.profiles.diffusion import BackgroundRemover, EdgeDetector
from shared.profiles.instruct import GgufTransformer, InstructPipeline, InstructPix2Pix, InstructServer, OneStep
from shared.profiles.profile import Profile, ProfileError, load_profile
from shared.profiles.unets import InputLayer, Lora, WholeUNet
from shared.profiles.weights import Server, Weights

LISTING = "contrafact-weights.json"
PAUSES = (2.0, 10.0, 30.0, 60.0)  # seconds before each further attempt; the Hub's client has short retries of its own
PROGRESS_SECONDS = 15.0
WEIGHTS_SUFFIXES = (".safetensors", ".gguf", ".onnx")
_TEXTS = ("*.json", "*.txt", "*.jinja", "*.model")  # configurations, vocabularies, chat templates, SentencePiece
_PARTS = ("scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "unet", "vae")


FAILURES = (HTTPError, LocalEntryNotFoundError, OSError)  # HTTPError comes from the client's own HTTP library


class IncompleteWeights(Exception):
    """Weights of the profile are missing or cannot be fetched; the message says what to do."""


@dataclass(frozen=True, slots=True)
class HubFiles:
    """Files of one repository of the Hub at one commit; `patterns` as in `fnmatch`, where `*` crosses slashes."""

    repository: str
    revision: str
    patterns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.repository} at {self.revision}"


def hub_files(profile: Profile, servers: bool = False) -> list[HubFiles]:
    """List the Hub files that the services load; with `servers`, also those that the profile's servers load."""
    diffusion = profile.diffusion
    files = [*_pipeline_files(diffusion.base)]
    for weights in _folders(profile):
        if weights is not None and weights.hub:
            files.append(HubFiles(weights.hub, weights.revision, _in_subfolder(weights, _patterns(weights.variant))))
    few_step = diffusion.few_step.weights if diffusion.few_step else None
    pix2pix = diffusion.instruct if isinstance(diffusion.instruct, InstructPix2Pix) else None
    singles: list[WholeUNet | Lora | InputLayer | EdgeDetector | BackgroundRemover | GgufTransformer | None] = [
        diffusion.unet,
        *diffusion.loras,
        few_step,
        diffusion.hed,
        diffusion.background_remover,
    ]
    if pix2pix is not None:
        files += _pipeline_files(pix2pix.weights) if pix2pix.weights else []
        singles += [pix2pix.unet, pix2pix.conv_in, *pix2pix.loras]
    elif isinstance(diffusion.instruct, OneStep):
        singles += diffusion.instruct.loras
    elif isinstance(diffusion.instruct, InstructPipeline):
        files += _whole_pipeline(diffusion.instruct.weights)
        singles += [*diffusion.instruct.loras, diffusion.instruct.transformer]
    for single in singles:
        if single is not None and single.hub:
            names = (single.file,) if single.file else _patterns(single.variant)
            files.append(HubFiles(single.hub, single.revision, _in_subfolder(single, names)))
    instruct = diffusion.instruct.server if isinstance(diffusion.instruct, InstructServer) else None
    for server in (profile.caption.server, profile.language.server, instruct):
        if servers and server is not None:
            files.append(_server_files(server))
    return list(dict.fromkeys(files))


def _folders(profile: Profile) -> list[Weights | None]:
    """The weights that are loaded from a folder of a repository; None for those that the profile does not have."""
    diffusion, evaluator, language = profile.diffusion, profile.evaluator, profile.language
    return [
        profile.caption.weights,
        language.weights,
        language.adapter,
        language.masked_words,
        diffusion.vae,
        *diffusion.controlnets.values(),
        diffusion.segmenter,
        diffusion.depth,
        evaluator.scorer,
        evaluator.second_scorer,
        evaluator.text_embedder,
        evaluator.segmenter,
        *evaluator.models_under_test.values(),
    ]


def fetch(requests: list[HubFiles], home: Path) -> None:
    """Fetch the files that `home` lacks and update its listing. Raises IncompleteWeights; a second call resumes."""
    fetched = _read_listing(home)
    for request in requests:
        if request in fetched:
            print(f"{request}: already there")
            continue
        try:
            folder = _fetch_patiently(request, home / "hub")
        except FAILURES as error:
            raise IncompleteWeights(
                f"cannot fetch {request}: {error}\nIs the Hub reachable, its licence accepted, HF_TOKEN set?"
            ) from error
        # The Hub's files at a commit never change, so a complete download stays complete.
        if not any(path.suffix in WEIGHTS_SUFFIXES for path in folder.rglob("*")):
            raise IncompleteWeights(f"{request} has no file like {', '.join(request.patterns)}; correct the profile")
        fetched.add(request)
        _write_listing(home, fetched)


def _fetch_patiently(request: HubFiles, cache: Path) -> Path:
    """Fetch into the cache; after a temporary failure, try again and continue with the bytes in the cache."""
    for pause in (*PAUSES, None):
        try:
            return _fetch_once(request, cache)
        except FAILURES as error:
            if pause is None or not _may_pass(error):
                raise
            print(f"{request}: {type(error).__name__}: {error}; continuing in {pause:.0f} s", flush=True)
            time.sleep(pause)
    raise AssertionError  # the last attempt returns or raises


def _fetch_once(request: HubFiles, cache: Path) -> Path:
    repository, revision, patterns = request.repository, request.revision, list(request.patterns)
    files = snapshot_download(repository, revision=revision, cache_dir=cache, allow_patterns=patterns, dry_run=True)
    total = sum(file.file_size or 0 for file in files)
    print(f"{request}: fetching {len(files)} files, {total / 1e9:.1f} GB", flush=True)
    folder = cache / repo_folder_name(repo_id=repository, repo_type="model") / "blobs"
    with _progress(str(request), folder, total):
        return Path(snapshot_download(repository, revision=revision, cache_dir=cache, allow_patterns=patterns))


def _may_pass(error: Exception) -> bool:
    """Whether another attempt can succeed: it cannot after a refusal or on a full disk."""
    response = getattr(error, "response", None)
    if isinstance(error, HfHubHTTPError) and response is not None:
        return response.status_code in RETRIED
    return not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS))


@contextmanager
def _progress(name: str, folder: Path, total: int) -> Iterator[None]:
    """Print the progress at intervals, because a log cannot show a progress bar."""
    over = threading.Event()

    def watch() -> None:
        before, begun = _stored_bytes(folder), time.monotonic()
        while not over.wait(PROGRESS_SECONDS):
            stored, seconds = _stored_bytes(folder), time.monotonic() - begun
            rate = (stored - before) / seconds / 1e6
            print(f"{name}: {stored / 1e9:.1f} of {total / 1e9:.1f} GB, {rate:.0f} MB/s", flush=True)

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _stored_bytes(folder: Path) -> int:
    """Bytes of a repository's files in the cache, unfinished ones included."""
    size = 0
    for path in folder.glob("*"):
        try:
            size += path.stat().st_size
        except FileNotFoundError:  # renamed, since it is complete
            continue
    return size


def check(requests: list[HubFiles], home: Path) -> None:
    """Raise IncompleteWeights unless `fetch` has put everything into `home`."""
    fetched = _read_listing(home)
    missing = [str(item) for item in requests if item not in fetched]
    if missing:
        raise IncompleteWeights(
            f"{home} lacks {', '.join(missing)}; run `python -m shared.profiles.fetch_weights` there"
        )


def _patterns(variant: str | None) -> tuple[str, ...]:
    if variant is None:
        return (*_TEXTS, "*.safetensors")
    return (*_TEXTS, f"*.{variant}.safetensors", f"*.{variant}-*.safetensors")


def _pipeline_files(base: Weights) -> Iterator[HubFiles]:
    """Only the subfolders that are loaded; these repositories also hold the whole model twice as single files."""
    if base.hub:
        files = [f"{part}/{name}" for part in _PARTS for name in _patterns(base.variant)]
        yield HubFiles(base.hub, base.revision, _in_subfolder(base, ("model_index.json", *files)))


def _whole_pipeline(weights: Weights) -> Iterator[HubFiles]:
    """All subfolders of a pipeline, and not the single files beside them, which hold the same once more."""
    if weights.hub:
        files = (f"*/{name}" for name in _patterns(weights.variant))
        yield HubFiles(weights.hub, weights.revision, ("model_index.json", *files))


def _server_files(server: Server) -> HubFiles:
    """One GGUF file for llama.cpp's `ORG/NAME:QUANTISATION`; for other models, all files that transformers reads."""
    repository, _, quantisation = server.model.partition(":")
    return HubFiles(repository, server.revision, (f"*{quantisation}.gguf",) if quantisation else _patterns(None))


def _in_subfolder(weights: Weights, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{weights.subfolder}/{name}" for name in names) if weights.subfolder else names


def _read_listing(home: Path) -> set[HubFiles]:
    try:
        items = json.loads((home / LISTING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return set()
    return {HubFiles(item["repository"], item["revision"], tuple(item["patterns"])) for item in items}


def _write_listing(home: Path, fetched: set[HubFiles]) -> None:
    temporary = home / f"{LISTING}.{os.getpid()}"
    items = [asdict(item) for item in sorted(fetched, key=str)]
    temporary.write_text(json.dumps(items, indent=1), encoding="utf-8")
    temporary.replace(home / LISTING)


def main() -> None:
    """Fetch or check the weights of the profile given on the command line, or by the environment."""
    parser = argparse.ArgumentParser(prog="python -m shared.profiles.fetch_weights", description=__doc__)
    parser.add_argument("--profile", default=os.environ.get("CONTRAFACT_PROFILE", "tiny"), help="a name, or a file")
    parser.add_argument("--servers", action="store_true", help="also what the profile's own servers serve")
    parser.add_argument("--check", action="store_true", help="fetch nothing, say whether all is there")
    options = parser.parse_args()
    home = Path(HF_HOME)
    try:
        requests = hub_files(load_profile(options.profile), options.servers)
        (check if options.check else fetch)(requests, home)
    except (IncompleteWeights, ProfileError) as error:
        sys.exit(str(error))
    print(f"profile {options.profile}: {len(requests)} sets of weights from the Hub are in {home}")


if __name__ == "__main__":
    main()
