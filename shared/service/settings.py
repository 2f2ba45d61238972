"""Settings of the model services, from environment variables.

What a model service reads from an HTTP request: the deadline in its header and the JSON body.
"""

from __future__ import annotations

import time
from typing import Literal

from fastapi import Request
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import SettingsConfigDict

from shared.media.images import ImageSettings
from shared.problems import InvalidInput, Malformed, validation_sentence
from shared.profiles.arithmetic import DtypeChoice
from shared.service.endpoints import Request as RequestBody

DEADLINE_HEADER = "X-Deadline-Seconds"
DEFAULT_DEADLINE_SECONDS = 300.0
MAX_DEADLINE_SECONDS = 3600.0


def read_deadline(request: Request) -> float:
    """The time, on the clock of `time.monotonic()`, after which the caller no longer needs the reply."""
    text = request.headers.get(DEADLINE_HEADER)
    try:
        seconds = DEFAULT_DEADLINE_SECONDS if text is None else float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_DEADLINE_SECONDS:
        raise InvalidInput(f"{DEADLINE_HEADER} must be seconds above 0 and up to {MAX_DEADLINE_SECONDS:.0f}: {text!r}")
    return time.monotonic() + seconds


def parse(request_type: type[RequestBody], body: bytes) -> RequestBody:
    """Parse a request from its JSON body; raises Malformed or InvalidInput."""
    try:
        return request_type.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        unreadable = any(item["type"] == "json_invalid" for item in errors)
        raise (Malformed if unreadable else InvalidInput)(validation_sentence(errors)) from error


LARGEST_SUBMISSION = 64  # texts to score, which enter the queue together; a smaller queue would refuse them for ever
SMALLEST_UPLOAD_MIB = 64

CompileMode = Literal["off", "default", "reduce-overhead"]
AttentionKernel = Literal["auto", "flash", "efficient", "cudnn", "math"]


class ServiceSettings(ImageSettings):
    """Settings of every model service. Every field is one variable, for example `CONTRAFACT_DEVICE`."""

    model_config = SettingsConfigDict(env_prefix="CONTRAFACT_", extra="ignore", use_attribute_docstrings=True)

    profile: str = "tiny"
    """A shipped profile, or the path of a TOML file; use the gateway's profile."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` uses a GPU if there is one."""
    deterministic: bool = False
    """Fixed batch shapes: a result has the same bits whatever else is in its batch."""
    max_batch: int = 0
    """Largest batch, in items; 0: the profile's value."""
    max_wait_seconds: float = 0.005
    """How long an idle model waits for a batch to fill."""
    capacity: int = Field(default=256, ge=LARGEST_SUBMISSION)
    """Items in the queue, at least 64; beyond it the answer is 429."""
    threads: int = 0
    """CPU threads of the models; 0: every core that the process may use. Services on one machine should divide them."""
    dtype: DtypeChoice = "auto"
    """`float32`, `float16` or `bfloat16` for weights that the profile prefers in half precision; `auto`: by device."""
    compile: CompileMode = "off"
    """diffusion_service: `default` uses `torch.compile`, `reduce-overhead` adds CUDA graphs; needs a C++ compiler."""
    attention: AttentionKernel = "auto"
    """diffusion_service: `flash`, `efficient`, `cudnn` or `math`; `auto`: torch chooses."""
    pinned_copies: bool = False
    """diffusion_service: copy inputs to the GPU from page-locked memory."""
    vae_dtype: DtypeChoice = "auto"
    """diffusion_service: type of the autoencoder; `auto`: the weights' on a GPU unless it overflows, else `float32`."""
    batches_at_once: int = Field(default=1, ge=1)
    """diffusion_service on a CPU: batches at the same time, each with `CONTRAFACT_THREADS` threads."""
    drain_seconds: float = 30.0
    """How long a stopping service works on its queue."""
    max_batch_seconds: float = Field(default=MAX_DEADLINE_SECONDS, ge=0)
    """A batch that computes for longer counts as hung, and the process ends; 0: no bound (default when embedded)."""
    model_origin: str = ""
    """Evaluator: `http://HOST:PORT`, the only origin of uploaded models; empty: uploads are refused."""
    upload_memory_mib: int = Field(default=0, ge=0)
    """Evaluator: memory of the process of one uploaded model, its libraries (about 400 MiB) included, at least 64; 0:
    4,096, or half of the container's memory where that is less."""
    upload_load_seconds: float = Field(default=240.0, gt=0)
    """Evaluator: time to load an uploaded model and try it on a full batch."""
    upload_batch_seconds: float = Field(default=120.0, gt=0)
    """Evaluator: time of one batch of an uploaded model."""
    quarantine: str = ""
    """Evaluator: folder of the records of quarantined models; empty: a folder in the temporary directory."""

    @field_validator("upload_memory_mib")
    @classmethod
    def _enough_to_start(cls, value: int) -> int:
        if 0 < value < SMALLEST_UPLOAD_MIB:
            raise ValueError(f"{value} MiB start no process; give at least {SMALLEST_UPLOAD_MIB}, or 0 for the default")
        return value
