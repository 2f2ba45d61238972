"""`python -m shared.fetch_weights`: a profile's weights, from the Hub into the folder that services read (`HF_HOME`).

The one step of a deployment that needs the network and, for gated weights, the Hub's token (`HF_TOKEN`); the services
then run offline from the same folder, read-only. Fetched are safetensors, configurations and tokenizers at the commits
that the profile names, never code or pickles. `--check` asks, without network, whether everything is there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HOME
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

from shared.profiles import Profile, ProfileError, load_profile
from shared.weights import Server, Weights

LISTING = "contrafact-weights.json"
_TEXTS = ("*.json", "*.txt", "*.jinja", "*.model")  # configurations, vocabularies, chat templates, SentencePiece
_PARTS = ("scheduler", "text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "unet", "vae")


class IncompleteWeights(Exception):
    """What the profile wants is not there, or not to be had; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Files of one repository of the Hub at one commit; `patterns` as in `fnmatch`, where `*` crosses slashes."""

    repository: str
    revision: str
    patterns: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.repository} at {self.revision}"


def wanted_by(profile: Profile, servers: bool = False) -> list[Wanted]:
    """What the services load from the Hub under this profile; with `servers`, also what the profile's servers serve."""
    diffusion, evaluator = profile.diffusion, profile.evaluator
    language = profile.language
    single = [profile.caption.weights, language.weights, language.adapter, language.masked_words]
    single += [
        diffusion.vae,
        *diffusion.controlnets.values(),
        diffusion.segmenter,
        diffusion.depth,
        diffusion.few_step.unet if diffusion.few_step else None,
        evaluator.scorer,
        evaluator.text_embedder,
        evaluator.segmenter,
    ]
    single += evaluator.models_under_test.values()
    found = [*_of_pipeline(diffusion.base)]
    for weights in single:
        if weights is not None and weights.hub:
            found.append(Wanted(weights.hub, weights.revision, _inside(weights, _files_of(weights.variant))))
    lora = diffusion.few_step.lora if diffusion.few_step else None
    if lora is not None and lora.hub:
        found.append(Wanted(lora.hub, lora.revision, _inside(lora, (lora.file,))))
    for server in (profile.caption.server, profile.language.server):
        if servers and server is not None:
            found.append(_of_server(server))
    return list(dict.fromkeys(found))


def fetch(wanted: list[Wanted], home: Path) -> None:
    """Fetch what `home` lacks, and write down there what it has. Raises IncompleteWeights; asked again, it goes on."""
    have = _listed(home)
    for item in wanted:
        if item in have:
            print(f"{item}: already there")
            continue
        print(f"{item}: fetching", flush=True)
        try:
            # The Hub's files at a commit never change, so what is whole stays whole.
            folder = snapshot_download(
                item.repository, revision=item.revision, cache_dir=home / "hub", allow_patterns=list(item.patterns)
            )
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise IncompleteWeights(
                f"cannot fetch {item}: {error}\nIs the Hub reachable, its licence accepted, HF_TOKEN set?"
            ) from error
        if not any(path.suffix in (".safetensors", ".gguf") for path in Path(folder).rglob("*")):
            raise IncompleteWeights(f"{item} has no file like {', '.join(item.patterns)}; mend the profile")
        have.add(item)
        _write_listing(home, have)


def check(wanted: list[Wanted], home: Path) -> None:
    """Raise IncompleteWeights unless `fetch` has put everything into `home`."""
    have = _listed(home)
    missing = [str(item) for item in wanted if item not in have]
    if missing:
        raise IncompleteWeights(f"{home} lacks {', '.join(missing)}; run `python -m shared.fetch_weights` there")


def _files_of(variant: str | None) -> tuple[str, ...]:
    if variant is None:
        return (*_TEXTS, "*.safetensors")
    return (*_TEXTS, f"*.{variant}.safetensors", f"*.{variant}-*.safetensors")


def _of_pipeline(base: Weights) -> Iterator[Wanted]:
    """Only the folders that are loaded: such repositories also keep the whole model in single files, twice."""
    if base.hub:
        files = [f"{part}/{name}" for part in _PARTS for name in _files_of(base.variant)]
        yield Wanted(base.hub, base.revision, _inside(base, ("model_index.json", *files)))


def _of_server(server: Server) -> Wanted:
    """llama.cpp's `ORG/NAME:QUANTISATION` is one GGUF file; of any other model, all that transformers would read."""
    repository, _, quantisation = server.model.partition(":")
    return Wanted(repository, server.revision, (f"*{quantisation}.gguf",) if quantisation else _files_of(None))


def _inside(weights: Weights, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{weights.subfolder}/{name}" for name in names) if weights.subfolder else names


def _listed(home: Path) -> set[Wanted]:
    try:
        items = json.loads((home / LISTING).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return set()
    return {Wanted(item["repository"], item["revision"], tuple(item["patterns"])) for item in items}


def _write_listing(home: Path, have: set[Wanted]) -> None:
    written = home / f"{LISTING}.{os.getpid()}"
    items = [asdict(item) for item in sorted(have, key=str)]
    written.write_text(json.dumps(items, indent=1), encoding="utf-8")
    written.replace(home / LISTING)


def main() -> None:
    """Read the command line; the profile is the environment's unless it is given."""
    parser = argparse.ArgumentParser(prog="python -m shared.fetch_weights", description=__doc__)
    parser.add_argument("--profile", default=os.environ.get("CONTRAFACT_PROFILE", "tiny"), help="a name, or a file")
    parser.add_argument("--servers", action="store_true", help="also what the profile's own servers serve")
    parser.add_argument("--check", action="store_true", help="fetch nothing, say whether all is there")
    options = parser.parse_args()
    home = Path(HF_HOME)
    try:
        wanted = wanted_by(load_profile(options.profile), options.servers)
        (check if options.check else fetch)(wanted, home)
    except (IncompleteWeights, ProfileError) as error:
        sys.exit(str(error))
    print(f"profile {options.profile}: {len(wanted)} sets of weights from the Hub are in {home}")


if __name__ == "__main__":
    main()
