"""Builds the package of a model under test from uploaded files: one tar of the files that it needs, named by digest.

    files of a form, or one archive ──► files of a model only ──► checked as data, never run ──► tar (sorted, dateless)

Pickles, code, other formats and external data are refused by name. The evaluator loads the model once before it is
stored, and refuses what only a library can detect (`evaluator_service.models_under_test`).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from pydantic import ValidationError

from gateway.intake.archive_members import ArchiveLimits, Content
from gateway.intake.archives import open_members
from gateway.intake.sources import NamedFile
from shared.characters import is_storable
from shared.media.archives import is_archive
from shared.problems import InvalidInput, Malformed, TooLarge, validation_sentence
from shared.profiles.weights import write_tar
from shared.schemas.models import (
    CONFIG_NAME,
    DESCRIPTION_NAME,
    INDEX_NAME,
    JSON_NAMES,
    ONNX_NAME,
    PROCESSOR_NAME,
    SAFETENSORS,
    ModelDescription,
    ModelSpec,
    is_model_file,
    read_description,
)

Format = Literal["safetensors", "onnx"]

MAX_FILES = 1_000
MAX_JSON_BYTES = 4 * 1024**2
MAX_HEADER_BYTES = 4 * 1024**2  # some 30,000 tensors; parsing takes 30 times as much memory
PIECE_BYTES = 1024**2

_REFUSED = {
    (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".npy", ".npz"): (
        "may hold a pickle, which runs code when it is read; save the model as safetensors, or export it to ONNX"
    ),
    (".py", ".pyc", ".so", ".dll", ".dylib", ".sh"): (
        "is code, and models under test bring none; use a model class of transformers itself, or export to ONNX"
    ),
    (".h5", ".keras", ".msgpack", ".pb", ".tflite", ".gguf", ".engine"): (
        "is of another format; send safetensors in Hub layout, or one ONNX file"
    ),
    (".data", ".onnx_data"): "looks like ONNX data outside its file; save the model with everything inside",
}
# Keys with which transformers would load code, weights or libraries from outside the package.
_FORBIDDEN_KEYS = {
    "auto_map": "asks for code of its own",
    "custom_pipelines": "asks for code of its own",
    "quantization_config": "asks for a quantisation library",
    "use_pretrained_backbone": "asks for weights from elsewhere",
}
_PLAIN_ATTENTION = ("eager", "sdpa", None)


@dataclass(frozen=True, slots=True)
class Package:
    """A model's package: an open file, its SHA-256 and size, and the model's format."""

    file: IO[bytes]
    digest: str
    bytes: int
    format: Format


@contextmanager
def pack(files: Sequence[NamedFile], spec: ModelSpec, max_bytes: int) -> Iterator[Package]:
    """Pack the files; the package exists until the block ends.

    Raises InvalidInput, Malformed and TooLarge, with the name of the refused file.
    """
    with tempfile.TemporaryDirectory(prefix="contrafact-model-") as place, tempfile.TemporaryFile() as file:
        folder = Path(place)
        _collect(files, folder, max_bytes)
        kind = _check(folder)
        description = spec.over(_description(folder))
        (folder / DESCRIPTION_NAME).write_text(description.model_dump_json(exclude_defaults=True), encoding="utf-8")
        if kind == "onnx" and description.preprocessing is None and not (folder / PROCESSOR_NAME).is_file():
            raise InvalidInput(
                "the preprocessing of this model's input is not given; give `preprocessing` in the spec, or send the "
                f"{PROCESSOR_NAME} of its image processor too"
            )
        write_tar(folder, file)
        size = file.tell()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        yield Package(file, digest, size, kind)


def _collect(files: Sequence[NamedFile], folder: Path, max_bytes: int) -> None:
    """Write the files of the model into a folder under their own names."""
    if not files:
        raise InvalidInput(
            "there is no model; send it as the part `model`: an archive, an .onnx file, or several files"
        )
    if len(files) == 1 and is_archive(files[0].content):
        limits = ArchiveLimits(MAX_FILES, max_bytes, max_bytes)
        for member in open_members(files[0].content, limits, _refuse_name):
            if member.content is None:
                raise TooLarge(f"{member.name!r}: {member.problem}")
            if (name := _package_name(member.name)) is not None:
                _write_new(folder / name, member.content)
        return
    for file in files:
        _refuse_name(file.name)
        if is_archive(file.content):
            raise InvalidInput(
                f"{file.name[:100]!r} is an archive; send it alone, or send the model's files themselves"
            )
        if (name := _package_name(file.name)) is not None:
            file.content.seek(0)
            _write_new(folder / name, file.content)


def _refuse_name(name: str) -> None:
    """Refuse a file by its name."""
    lower = name.lower()
    for suffixes, reason in _REFUSED.items():
        if lower.endswith(suffixes):
            raise InvalidInput(f"{name[:100]!r} {reason}")


def _package_name(name: str) -> str | None:
    """The file's name in the package; None for files that a model does not need (README, tokenizer, ...)."""
    file_name = name.replace("\\", "/").rpartition("/")[2]
    if file_name.lower().endswith(".onnx"):
        return ONNX_NAME
    return file_name if is_model_file(file_name) else None


def _new_file(path: Path) -> IO[bytes]:
    try:
        return path.open("xb")
    except FileExistsError as error:
        raise InvalidInput(f"there is more than one {path.name}; send the files of one model") from error


def _write_new(path: Path, content: Content | IO[bytes]) -> None:
    """Write a file piece by piece: a model may not fit into the gateway's memory."""
    with _new_file(path) as file:
        while piece := content.read(PIECE_BYTES):
            file.write(piece)


def _check(folder: Path) -> Format:
    names = {path.name for path in folder.iterdir()}
    weights = sorted(name for name in names if SAFETENSORS.fullmatch(name))
    for name in sorted(names & JSON_NAMES):
        _check_json(folder / name)
    if ONNX_NAME in names:
        if weights:
            raise InvalidInput(f"there are {ONNX_NAME} and {weights[0]}; send one of them")
        return "onnx"
    if not weights:
        raise InvalidInput("there are no weights; send model.safetensors in Hub layout, or one .onnx file")
    for name, content in ((CONFIG_NAME, "what the model is"), (PROCESSOR_NAME, "how images become its input")):
        if name not in names and not (name == PROCESSOR_NAME and _is_timm(folder)):
            raise InvalidInput(
                f"{name} is missing, which says {content}; save_pretrained of model and processor write it"
            )
    for name in weights:
        _check_safetensors(folder / name)
    if INDEX_NAME in names:
        _check_index(folder / INDEX_NAME, weights)
    return "safetensors"


def _is_timm(folder: Path) -> bool:
    return "pretrained_cfg" in json.loads((folder / CONFIG_NAME).read_bytes())


def _check_json(path: Path) -> None:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise TooLarge(f"{path.name} is larger than {MAX_JSON_BYTES:,} bytes")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        forbidden, is_stored = _forbidden(value), is_storable(value)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path.name} is not JSON in UTF-8: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise Malformed(f"{path.name} is not a JSON object")
    if not is_stored:
        raise Malformed(
            f"{path.name} has a text that cannot be stored (U+0000, or half of a surrogate pair); change it"
        )
    if forbidden is not None:
        raise InvalidInput(f"{path.name} has {forbidden}; a model under test must be self-contained")


def _forbidden(value: object) -> str | None:
    """The first key at any depth that leads outside the package, with the reason."""
    if isinstance(value, list):
        return next((forbidden for item in value if (forbidden := _forbidden(item))), None)
    if not isinstance(value, dict):
        return None
    for key, inner in value.items():
        if key in _FORBIDDEN_KEYS and inner:
            return f"`{key}`, which {_FORBIDDEN_KEYS[key]}"
        if key.endswith("attn_implementation") and inner not in _PLAIN_ATTENTION:
            return f"`{key}`, which asks for code from elsewhere"
        if forbidden := _forbidden(inner):
            return forbidden
    return None


def _check_safetensors(path: Path) -> None:
    """Check the header against the file; a renamed pickle has no header."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or length > size - 8:
            raise Malformed(f"{path.name} is not a safetensors file; save the model with save_pretrained")
        if length > MAX_HEADER_BYTES:
            raise TooLarge(f"{path.name} has a header of more than {MAX_HEADER_BYTES:,} bytes; save it in shards")
        try:
            header = json.loads(file.read(length).decode())
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
        except (ArithmeticError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise Malformed(f"{path.name} is not a safetensors file; save the model with save_pretrained") from error
    if max(ends, default=0) != size - 8 - length:
        raise Malformed(f"{path.name} is not as long as its header says; it was cut off, send it again")


def _check_index(path: Path, weights: Sequence[str]) -> None:
    shards = json.loads(path.read_bytes()).get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise Malformed(f"{path.name} has no weight_map; save the model with save_pretrained")
    if lacking := sorted(set(shards.values()) - set(weights)):
        raise InvalidInput(f"{path.name} names {lacking[0][:100]!r}, which was not sent; send all shards")


def _description(folder: Path) -> ModelDescription:
    try:
        return read_description(folder)
    except ValidationError as error:
        sentence = validation_sentence(error.errors(include_url=False, include_context=False, include_input=False))
        raise InvalidInput(f"{DESCRIPTION_NAME}: {sentence}") from error
