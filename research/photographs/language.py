"""A trial of small pretrained language models on the cut-outs' descriptions: what is written, and what is refused.

    python -m research.photographs.language --directory runs/photographs --images 60

SmolLM2-135M-Instruct (4 bits) answers DILLEMA's and LANCE's questions behind llama.cpp's server, and all-MiniLM-L6-v2
judges the words, with the thresholds of the profile `paper`, which names the same embedder. A caption is the package's
line about a cut-out and one of the trial's backgrounds. Nothing is rendered. Packages are fetched (340 MB with the
cut-outs). The directory gets `language.json`, every edit in it, and the tables are printed.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, zip_longest
from pathlib import Path

import numpy as np
import xllamacpp

from benchmarks.measure import running
from gateway.methods import dillema, lance
from gateway.methods.counterfactual import MethodImage, TaskDescription
from gateway.methods.schedule import Inputs, Proposal
from gateway.model_services.clients import ModelServices
from research.paper_tables.printing import grid
from research.photographs.cutouts import CLASSES, Cutout, cutouts
from research.photographs.packages import CUTOUTS, EMBEDDER, LANGUAGE_MODEL, fetch, members
from research.statistics.rates import rate_text
from research.system.folders import WEIGHTS
from shared.chunks import chunks
from shared.profiles.profile import load_profile
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import EmbedTextsRequest

TASK = TaskDescription("name the kind of the main object of the photo", tuple(CLASSES))
# What a caption says of each background (`backgrounds.py`).
PLACES = {
    "water drop": "in front of a water drop",
    "grass by the sea": "on grass by the sea",
    "meadow": "on a meadow",
    "wet leaf": "in front of a wet leaf",
    "road under dark clouds": "on a road under dark clouds",
    "pale wood": "in front of pale wood",
}
THRESHOLDS = "paper"  # the profile whose text checks are tried
LANCE_FACTORS: tuple[lance.LanceFactor, ...] = ("background", "adjective", "weather")
PROFILE = """[profile]
name = "small-language-models"
description = "SmolLM2-135M and all-MiniLM-L6-v2, from packages"
[caption]
engine = "blip2"
weights = {{ path = "{weights}/captioner", licence = "Apache-2.0", gigabytes = 0.03 }}
[language]
engine = "openai"
server = {{ url = "{url}", model = "SmolLM2-135M-Instruct", revision = "Q4_1", licence = "Apache-2.0", gigabytes = 1 }}
[diffusion]
base = {{ path = "{weights}/diffusion", licence = "Apache-2.0", gigabytes = 0.06 }}
[diffusion.controlnets.canny]
path = "{weights}/diffusion"
subfolder = "controlnet"
licence = "Apache-2.0"
gigabytes = 0.02
[evaluator]
scorer = {{ path = "{weights}/scorer", licence = "Apache-2.0", gigabytes = 0.02 }}
text_embedder = {{ path = "{folder}/embedder", licence = "Apache-2.0", gigabytes = 0.1 }}
[defaults]
methods = ["dillema"]
"""
_IMAGE = ImagePayload(png=b"-")  # no step that is tried reads it


@dataclass(frozen=True, slots=True)
class TriedEdit:
    """One proposal of a method: a line of `language.json`. `check` is what refused it, "" if it is accepted."""

    method: str
    label: str
    caption: str
    factor: str
    old: str
    new: str
    new_caption: str
    check: str
    reason: str


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path("runs/photographs"))
    parser.add_argument("--images", type=int, default=60, help="cut-outs to ask about, the classes in turn")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    folder: Path = options.directory / "language"
    packages = {
        package: fetch(package, options.directory / "packages") for package in (CUTOUTS, EMBEDDER, LANGUAGE_MODEL)
    }
    unpack(packages[EMBEDDER], packages[LANGUAGE_MODEL], folder)
    sources = list(cutouts(packages[CUTOUTS]))
    with services(folder) as client:
        print(of_classes(client, sources), flush=True)
        rows: list[TriedEdit] = []
        for image, caption in captions(in_turn(sources)[: options.images]):
            rows += proposals(client, image, caption, options.seed)
            print(f"{caption} {len(rows)} proposals so far", file=sys.stderr, flush=True)
    text = json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False)
    (options.directory / "language.json").write_text(text + "\n", encoding="utf-8")
    print(of_edits(rows))


def unpack(embedder: Path, language_model: Path, folder: Path) -> None:
    """The embedder's folder, the language model's file and a profile without a server, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (archive,) = (content for path, content in members(embedder) if path.name == "model.zip")
    with zipfile.ZipFile(io.BytesIO(archive)) as model:
        model.extractall(folder / "embedder")
    (content,) = (content for path, content in members(language_model) if path.suffix == ".gguf")
    (folder / "model.gguf").write_bytes(content)


@contextmanager
def services(folder: Path) -> Iterator[ModelServices]:
    """Clients of llm_service and evaluator_service with the two models; the other weights are the profile `tiny`'s."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(folder / "model.gguf")
    parameters.n_ctx, parameters.n_parallel, parameters.port = 4096, 1, 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.use_jinja, parameters.warmup, parameters.hostnames = True, False, ["127.0.0.1"]
    server = xllamacpp.Server(parameters)
    profile = folder / "profile.toml"
    profile.write_text(PROFILE.format(url=f"{server.listening_address}/v1", weights=WEIGHTS, folder=folder.resolve()))
    with running("llm_service", 1, str(profile)) as language, running("evaluator_service", 1, str(profile)) as words:
        yield ModelServices({"llm_service": language.url, "evaluator_service": words.url})
    del server


def in_turn(sources: Sequence[Cutout]) -> list[Cutout]:
    """Those with a line about them, one of each class after the other."""
    of_class: dict[str, list[Cutout]] = {}
    for cutout in sources:
        if cutout.description:
            of_class.setdefault(cutout.label, []).append(cutout)
    return [cutout for row in zip_longest(*of_class.values()) for cutout in row if cutout is not None]


def captions(chosen: Sequence[Cutout]) -> Iterator[tuple[MethodImage, str]]:
    """Each cut-out with a caption of it on one of the backgrounds, these in turn."""
    for cutout, place in zip(chosen, cycle(PLACES.values())):
        yield MethodImage(cutout.name, _IMAGE, cutout.label), f"{cutout.description.rstrip('. ')} {place}."


def proposals(client: ModelServices, image: MethodImage, caption: str, seed: int) -> list[TriedEdit]:
    """DILLEMA's steps 2 to 4 and LANCE's steps 2 and 3 for one caption."""
    of_dillema = Inputs("dillema", dillema.REVISION, image, TASK, client, dillema.DillemaParameters(), seed)
    keywords = dillema.find_keywords(of_dillema, caption)
    thresholds = load_profile(THRESHOLDS).text_thresholds
    parameters = lance.LanceParameters(factors=LANCE_FACTORS, text_thresholds=thresholds)
    of_lance = Inputs("lance", lance.REVISION, image, TASK, client, parameters, seed)
    return [
        tried(method, image, proposal)
        for method, done in (
            ("dillema", dillema.propose_edits(of_dillema, caption, keywords)),
            ("lance", lance.propose_edits(of_lance, caption)),
        )
        for proposal in done
    ]


def tried(method: str, image: MethodImage, proposal: Proposal) -> TriedEdit:
    """The line of a proposal."""
    edit, verdict = proposal.edit, proposal.verdict
    factor, old, new = ("", "", "")
    for change in edit.changes[:1]:
        factor, old, new = change.factor, change.from_phrase, change.to_phrase
    label = image.ground_truth or ""
    return TriedEdit(method, label, edit.caption, factor, old, new, edit.new_caption, verdict.check, verdict.reason)


def of_classes(client: ModelServices, sources: Sequence[Cutout]) -> str:
    """Whether the embedder knows the classes: of descriptions, the class nearest to them; of backgrounds, none near."""
    described = [cutout for cutout in sources if cutout.description]
    texts = [*CLASSES, *PLACES, *(cutout.description for cutout in described)]
    vectors = np.array(
        [v for chunk in chunks(texts, 256) for v in client.embed_texts(EmbedTextsRequest(texts=chunk)).texts]
    )
    near = vectors[len(CLASSES) :] @ vectors[: len(CLASSES)].T
    places, words = near[: len(PLACES)], near[len(PLACES) :]
    own = np.array([list(CLASSES).index(cutout.label) for cutout in described])
    right = int((words.argmax(1) == own).sum())
    limit = load_profile(THRESHOLDS).text_thresholds["class_words"]["default"]
    reached = int((words[np.arange(len(own)), own] >= limit).sum())
    value, label = np.unravel_index(places.argmax(), places.shape)
    highest = f"“{list(PLACES)[int(value)]}” and “{list(CLASSES)[int(label)]}” {places.max():.2f}"
    touching = f"{int((places.max(1) >= limit).sum())} of {len(PLACES)}; highest: {highest}"
    lines = [
        f"nearest class is the folder's: {rate_text(right, len(own))}",
        f"similarity to the folder's class reaches the threshold {limit}: {rate_text(reached, len(own))}",
        f"backgrounds that reach it for any class: {touching}",
    ]
    return "\n".join(["### Descriptions and classes", "", *(f"* {line}" for line in lines), ""])


def of_edits(rows: Sequence[TriedEdit]) -> str:
    """Proposals, accepted ones, and refusals by check, of each method; then the accepted edits."""
    body = []
    for method in ("dillema", "lance"):
        some = [row for row in rows if row.method == method]
        refused = Counter(row.check for row in some if row.check)
        checks = ", ".join(f"{check} {count}" for check, count in refused.most_common())
        body.append([method, str(len(some)), rate_text(len(some) - refused.total(), len(some)), checks])
    lines = [f"* {row.method}, {row.factor}: {row.caption} → {row.new_caption}" for row in rows if not row.check]
    table = grid(["method", "proposals", "accepted by the words", "refused as"], body)
    return "\n".join(["### Edits", "", table, "", *lines])


if __name__ == "__main__":
    main()
