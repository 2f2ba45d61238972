"""Uploads of models under test: which become a package, and which are refused."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from gateway.intake.sources import NamedFile
from gateway.models_under_test.packages import pack
from shared.problems import InvalidInput, Malformed, Problem, TooLarge
from shared.schemas.models import ModelSpec
from tests.support.archives import tarred, zipped
from tests.support.model_packages import HUB, PREPARED, safetensors

MOST = 1024**2


def files(named: Mapping[str, bytes]) -> list[NamedFile]:
    return [NamedFile(name, io.BytesIO(data)) for name, data in named.items()]


def in_zip(named: Mapping[str, bytes], inside: str = "") -> list[NamedFile]:
    return files({"model.zip": zipped(named, inside)})


def contents(sent: list[NamedFile], **spec: Any) -> tuple[str, dict[str, bytes]]:
    """The package's format and files; its digest is checked."""
    with pack(sent, ModelSpec.model_validate({"name": "m", **spec}), MOST) as package:
        data = package.file.read()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (package.bytes, package.digest)
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            entries = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
        return package.format, entries


def refusal(sent: list[NamedFile], **spec: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        contents(sent, **spec)
    return caught.value


def test_files_zip_and_tar_of_one_model_are_one_package() -> None:
    tar = files({"m.tgz": tarred(dict(reversed(HUB.items())), "here/", "w:gz")})
    digests = set()
    for sent in (files(HUB), in_zip(HUB, "my-model/"), tar, in_zip({**HUB, "README.md": b"hi"})):
        with pack(sent, ModelSpec(name="m"), MOST) as package:
            digests.add(package.digest)
    assert len(digests) == 1, "order, folders, dates and what the model does not need are not part of it"
    kind, entries = contents(files(HUB), licence="MIT", description="d")
    assert kind == "safetensors"
    assert entries == {**HUB, "contrafact.json": b"{}"}, "licence and description are not the model"


@pytest.mark.slow
@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_of_a_real_models_size_is_taken_in_without_holding_it_in_memory(compression: int) -> None:
    """A file of more than 32 MiB was refused as a directory that is too large."""
    size = 40 * 1024**2
    weights = safetensors(size)[:-size] + np.random.default_rng(0).bytes(size)
    archive = files({"model.zip": zipped({**HUB, "model.safetensors": weights}, compression=compression)})
    tracemalloc.start()
    with pack(archive, ModelSpec(name="m"), 2 * size) as package:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        with tarfile.open(fileobj=package.file) as tar:
            assert tar.extractfile("model.safetensors").read() == weights  # type: ignore[union-attr]
    assert peak < 8 * 1024**2


def test_the_spec_overrides_the_file_beside_the_model() -> None:
    beside = {"contrafact.json": json.dumps({"classes": ["a", "b"], "output": "probabilities"}).encode()}
    kind, entries = contents(files({"net.onnx": b"x", **beside}), classes={"c": 1}, preprocessing=PREPARED)
    assert kind == "onnx"
    assert sorted(entries) == ["contrafact.json", "model.onnx"]
    description = json.loads(entries["contrafact.json"])
    assert description["classes"] == {"c": 1}
    assert description["output"] == "probabilities"
    assert description["preprocessing"]["height"] == 32


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("pytorch_model.bin", "may hold a pickle"),
        ("weights.PT", "may hold a pickle"),
        ("training_args.bin", "may hold a pickle"),
        ("modeling_mine.py", "is code"),
        ("ops.so", "is code"),
        ("tf_model.h5", "is of another format"),
        ("model.onnx.data", "outside its file"),
        ("model.onnx_data", "outside its file"),
    ],
)
def test_pickles_code_and_other_formats_are_refused(name: str, words: str) -> None:
    for sent in (files({**HUB, name: b"x"}), in_zip({**HUB, f"deep/{name}": b"x"})):
        problem = refusal(sent)
        assert isinstance(problem, InvalidInput)
        assert words in problem.detail


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model.safetensors": None}, "there are no weights"),
        ({"config.json": None}, "config.json is missing"),
        ({"preprocessor_config.json": None}, "preprocessor_config.json is missing"),
        ({"model.safetensors": pickle.dumps({"a": 1})}, "not a safetensors file"),
        ({"model.safetensors": b""}, "not a safetensors file"),
        ({"model.safetensors": struct.pack("<Q", 2**63) + b"{}"}, "not a safetensors file"),
        ({"model.safetensors": safetensors()[:-1]}, "its header"),
        ({"model.safetensors": safetensors() + b"more"}, "its header"),
        ({"config.json": b"[]"}, "not a JSON object"),
        ({"config.json": b'{"a": '}, "not JSON in UTF-8"),
        ({"config.json": b"[" * 100_000}, "not JSON in UTF-8"),
        ({"config.json": b'\xff\xfe{"a": 1}'}, "not JSON in UTF-8"),
        ({"config.json": b" " * 5 * 1024**2}, "larger than"),
        ({"config.json": b'{"auto_map": {"AutoModel": "evil.Model"}}'}, "`auto_map`"),
        ({"preprocessor_config.json": b'{"x": [{"auto_map": {"A": "b.C"}}]}'}, "`auto_map`"),
        ({"config.json": b'{"quantization_config": {"quant_method": "gptq"}}'}, "`quantization_config`"),
        ({"config.json": b'{"backbone": "x/y", "use_pretrained_backbone": true}'}, "asks for weights from elsewhere"),
        ({"config.json": b'{"_attn_implementation": "someone/kernels"}'}, "asks for code from elsewhere"),
        ({"contrafact.json": b'{"classes": []}'}, "contrafact.json: classes"),
        ({"contrafact.json": b'{"remote": "http://10.0.0.1/"}'}, "unknown field remote"),
        ({"model.onnx": b"x"}, "model.onnx and model.safetensors"),
        ({"model.safetensors.index.json": b"{}"}, "has no weight_map"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}'}, "which was not sent"),
    ],
)
def test_incomplete_models_and_models_with_outside_references_are_refused(
    changes: dict[str, bytes | None], words: str
) -> None:
    sent = {name: data for name, data in {**HUB, **changes}.items() if data is not None}
    problem = refusal(files(sent))
    assert isinstance(problem, InvalidInput | TooLarge)
    assert words in problem.detail


def test_nothing_two_models_two_archives_and_nested_ones_are_refused() -> None:
    assert "there is no model" in refusal([]).detail
    assert "more than one config.json" in refusal(in_zip({**HUB, "other/config.json": b"{}"})).detail
    assert "more than one model.onnx" in refusal(files({"a.onnx": b"x", "b.onnx": b"y"})).detail
    assert "is an archive" in refusal([*in_zip(HUB), *files(HUB)]).detail
    (inner,) = in_zip(HUB)
    assert isinstance(inner.content, io.BytesIO)
    assert "another archive" in refusal(in_zip({"inner.zip": inner.content.getvalue()})).detail
    assert isinstance(refusal(in_zip({"../config.json": b"{}"})), Malformed)
    assert isinstance(refusal(in_zip({"model.safetensors": safetensors(2 * MOST)})), TooLarge)


def test_an_onnx_file_needs_its_preprocessing() -> None:
    assert "give `preprocessing`" in refusal(files({"net.onnx": b"x"})).detail
    contents(files({"net.onnx": b"x", "preprocessor_config.json": b"{}"}))


def test_timm_models_bring_their_preprocessing_in_their_configuration() -> None:
    timm = {"config.json": b'{"architecture": "resnet18", "pretrained_cfg": {}}', "model.safetensors": safetensors()}
    assert contents(files(timm))[0] == "safetensors"


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "../x"},
        {"name": "a b"},
        {"name": ""},
        {"name": "x" * 101},
        {"name": "m", "classes": ["a", "\u202eb"]},
        {"name": "m", "classes": {"a": -1}},
        {"name": "m", "classes": {"a": []}},
        {"name": "m", "classes": {"a": 10_000}},
        {"name": "m", "task": "tracking"},
        {"name": "m", "url": "http://169.254.169.254/"},
        {"name": "m", "preprocessing": {"height": 0, "width": 1}},
        {"name": "m", "preprocessing": {"height": 5_000, "width": 1}},
        {"name": "m", "preprocessing": {**PREPARED, "std": [0, 1, 1]}},
        {"name": "m", "preprocessing": {**PREPARED, "mean": [1e9, 0, 0]}},
        {"name": "m", "preprocessing": {**PREPARED, "mean": [float("nan"), 0, 0]}},
        {"name": "m", "preprocessing": {**PREPARED, "scale": 0}},
        {"name": "m", "preprocessing": {**PREPARED, "shortest_edge": 40}},
        {"name": "m", "preprocessing": {**PREPARED, "fit": "crop", "shortest_edge": 20}},
    ],
)
def test_a_spec_without_sense_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  pydantic's, with as many words as there are cases
        ModelSpec.model_validate(spec)
