"""Settings of the trainer, read from the environment (`CONTRAFACT_…`) at the start."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr
from pydantic_settings import SettingsConfigDict

from shared.images import ImageSettings

CACHED_BYTES = 2 * 1024**3


class TrainerSettings(ImageSettings):
    """The fields have the meaning of the same settings of the gateway and of the model services."""

    model_config = SettingsConfigDict(env_prefix="CONTRAFACT_", extra="ignore", frozen=True, hide_input_in_errors=True)

    broker_url: Annotated[str, Field(repr=False)] = "memory://localhost"
    object_store: str = "directory:objects"
    s3_endpoint: str = ""
    s3_access_key: str = ""
    s3_secret_key: SecretStr = SecretStr("")
    s3_secure: bool = False
    profile: str = "tiny"
    device: str = "auto"
    threads: Annotated[int, Field(ge=0)] = 0
    cached_bytes: Annotated[int, Field(ge=0)] = CACHED_BYTES
    """Decoded images that the trainer keeps between steps."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
