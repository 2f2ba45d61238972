"""Sources of weights: a folder, a Hub id at a pinned commit, or an external server. Does not import torch."""

from __future__ import annotations

import hashlib
import os
import tarfile
from functools import lru_cache
from pathlib import Path
from typing import IO, Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from shared.schemas.service import WeightsInfo

Dtype = Literal["float32", "float16", "bfloat16"]
MaxBatch = Annotated[int, Field(ge=1, le=256)]
FROM_SERVER = "server"  # the `dtype` of weights that a server runs
REPOSITORY = Path(__file__).resolve().parent.parent.parent
# Model cards and training logs do not affect the model, so they do not change its revision.
_UNREAD_NAMES = frozenset({"README.md", "training.json", ".gitattributes"})


class Section(BaseModel):
    """A table of a profile: unknown keys are refused, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Weights(Section):
    """One set of weights in Hub layout (safetensors): a `path`, or a `hub` id with its `revision`.

    A relative `path` is relative to the profile's folder (for shipped profiles: to the repository).
    `dtype` is the preferred type; a service loads them in what its device computes natively
    (`shared.profiles.arithmetic`). `gigabytes` is the device memory that they take in `dtype`.
    """

    path: Path | None = None
    hub: str | None = None
    revision: str = ""
    subfolder: str = ""
    variant: str | None = None
    dtype: Dtype = "float32"
    licence: str
    gigabytes: Annotated[float, Field(gt=0)]

    @field_validator("path", mode="after")
    @classmethod
    def _absolute(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        root = info.context["root"] if info.context else REPOSITORY
        return None if path is None else Path(root, path).resolve()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.path is None) == (self.hub is None):
            raise ValueError("give either `path` (a folder) or `hub` (an id on the Hugging Face Hub), not both")
        if self.hub is not None and not self.revision:
            raise ValueError(f'{self.hub}: give `revision`, the Hub commit to load; "main" follows the branch')
        return self

    @property
    def location(self) -> str:
        """What `from_pretrained` takes: the folder or the Hub id. Raises FileNotFoundError for a missing folder."""
        if self.path is None:
            assert self.hub is not None
            return self.hub
        if not self.path.is_dir():
            raise FileNotFoundError(
                f"no weights at {self.path}; train or download them, or correct the profile's `path`"
            )
        return str(self.path)

    @property
    def hub_revision(self) -> str | None:
        """The Hub commit to load, or None for a folder."""
        return self.revision if self.hub else None

    @property
    def id(self) -> str:
        """A readable name of the weights: Hub id, or path (relative to the repository if it is inside)."""
        if self.path is None:
            return str(self.hub)
        inside = self.path.is_relative_to(REPOSITORY)
        return str(self.path.relative_to(REPOSITORY) if inside else self.path)

    def info(self, role: str, commit: str | None = None) -> WeightsInfo:
        """The entry of `/v1/info`; `commit` is the Hub commit that was actually loaded, if the loader knows it."""
        revision = digest_folder(Path(self.location, self.subfolder)) if self.path else commit or self.revision
        return WeightsInfo(role=role, id=self.id, revision=revision, dtype=self.dtype, licence=self.licence)


class KeyValueCache(Section):
    """`[….server.cache]`: keys and values of the tokens that a transformer has read, which its server keeps on the GPU.

    `layers`, `heads` (of keys and values) and `head_size` are in the model's `config.json` as `num_hidden_layers`,
    `num_key_value_heads` and `head_dim` (or `hidden_size / num_attention_heads`). `context` is in tokens, the
    total of all concurrent requests. `value_bytes`: 2 in half precision; 1.0625 in llama.cpp's
    q8_0, which has 34 bytes for 32 values.
    """

    layers: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)]
    head_size: Annotated[int, Field(ge=1)]
    context: Annotated[int, Field(ge=1)]
    value_bytes: Annotated[float, Field(gt=0)] = 2.0

    @property
    def gigabytes(self) -> float:
        """A key and a value for each layer, head, element of a head and token."""
        return 2 * self.layers * self.heads * self.head_size * self.context * self.value_bytes / 1e9


class Server(Section):
    """A model behind an external HTTP server (OpenAI-compatible, or TGI).

    `url` is the API's root (`http://host:8000/v1`); where the environment variable `url_variable` is set, its value is
    used instead. `api_key_variable` names the environment variable with the key.
    `revision` says which weights the server runs; change it when they change, since recorded calls are keyed by it.
    `gigabytes` are those of the weights; `cache` describes the additional memory. `ca_file`: PEM of certificate
    authorities to trust, too; engine `tgi` knows those of `SSL_CERT_FILE` only.
    """

    url: Annotated[str, Field(pattern=r"^https?://")]
    url_variable: str = ""
    model: str
    revision: str
    licence: str
    gigabytes: Annotated[float, Field(gt=0)]
    api_key_variable: str = ""
    ca_file: str = ""
    concurrency: Annotated[int, Field(ge=1)] = 16
    cache: KeyValueCache | None = None

    @model_validator(mode="before")
    @classmethod
    def _url_of_the_environment(cls, values: object) -> object:
        variable = values.get("url_variable") if isinstance(values, dict) else None
        url = os.environ.get(variable, "") if isinstance(variable, str) else ""
        return {**values, "url": url} if url and isinstance(values, dict) else values

    @property
    def id(self) -> str:
        """The name of the model."""
        return self.model

    def info(self, role: str) -> WeightsInfo:
        """The entry of `/v1/info`."""
        return WeightsInfo(role=role, id=self.model, revision=self.revision, dtype=FROM_SERVER, licence=self.licence)


@lru_cache(maxsize=64)
def digest_folder(folder: Path) -> str:
    """SHA-256 over names and contents of the files in a model's folder; computed once per process."""
    hasher = hashlib.sha256()
    for path in sorted(item for item in folder.rglob("*") if item.is_file() and item.name not in _UNREAD_NAMES):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
        hasher.update(path.relative_to(folder).as_posix().encode() + b"\0" + content)
    return hasher.hexdigest()


def write_tar(folder: Path, file: IO[bytes]) -> None:
    """Write the files of a flat folder as a tar; equal files give equal bytes; owner and date do not matter."""
    with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(folder.iterdir()):
            header = tarfile.TarInfo(path.name)
            header.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(header, content)
