"""What the gateway and its worker read from the environment (`CONTRAFACT_…`), once, at the start."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.schemas.service import ServiceName


class Settings(BaseSettings):
    """Settings of gateway and worker. Every field is one variable, for example `CONTRAFACT_DATABASE_URL`."""

    # What could hold a password is in no repr, and no input is repeated in an error.
    model_config = SettingsConfigDict(env_prefix="CONTRAFACT_", extra="ignore", frozen=True, hide_input_in_errors=True)

    database_url: Annotated[str, Field(repr=False)] = "sqlite:///contrafact.db"
    """`sqlite:///path` or `postgresql+psycopg://user:password@host/name`."""
    broker_url: Annotated[str, Field(repr=False)] = "memory://localhost"
    """Celery's broker: `redis://host:6379/0`; `memory://localhost` only where worker and gateway share a process."""
    profile: str = "tiny"
    """Which weights the services load; decides defaults of jobs."""

    object_store: str = "directory:objects"
    """`directory:PATH`, or `s3:BUCKET` at the endpoint below."""
    s3_endpoint: str = ""
    s3_access_key: str = ""
    s3_secret_key: SecretStr = SecretStr("")
    s3_secure: bool = False

    caption_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8001"
    llm_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8002"
    diffusion_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8003"
    evaluator_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8004"
    gateway_url: str = "http://127.0.0.1:8000"
    """Where the evaluator reaches this gateway for uploaded models, if the object store is a directory."""
    service_deadline_seconds: Annotated[float, Field(gt=0)] = 600.0
    """Deadline of one call of a model service; a service drops a request whose deadline has passed."""
    service_wait_seconds: Annotated[float, Field(ge=0)] = 120.0
    """How long a step waits for a busy or starting service before it gives its image back."""

    authentication: bool = False
    """Ask for API keys. Off means that everybody is the one local owner: only for loopback."""
    key_requests_per_minute: Annotated[int, Field(ge=1)] = 6_000
    """Requests that a key may make, unless it was made with a limit of its own."""
    key_bytes_per_hour: Annotated[int, Field(ge=1)] = 64 * 1024**3
    """Bytes that a key may send, unless it was made with a limit of its own."""
    session_hours: Annotated[float, Field(gt=0)] = 12.0
    """How long a browser stays logged in."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """Where gateway and worker answer `/healthz`, `/readyz`, `/metrics` without a key; 0: nowhere."""
    max_request_bytes: int = 2 * 1024**3
    max_archive_bytes: int = 8 * 1024**3
    """Unpacked bytes of one archive."""
    max_image_bytes: int = 20 * 1024**2
    max_image_pixels: int = 40_000_000
    max_images_per_job: int = 100_000
    max_model_bytes: int = 1024**3
    """One upload of a model under test, packed and unpacked. A gateway takes in one at a time, in memory."""
    max_models_per_owner: Annotated[int, Field(ge=0)] = 50
    """Uploaded models under test that one owner may keep."""

    lease_seconds: Annotated[float, Field(gt=0)] = 60.0
    lease_renewal_seconds: Annotated[float, Field(gt=0)] = 15.0
    sweep_seconds: Annotated[float, Field(gt=0)] = 10.0
    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Failures of one image, each caused by the image itself, before it counts as failed."""
    max_lost_leases: Annotated[int, Field(ge=1)] = 20
    """Workers that died over one image before it counts as failed."""
    housekeeping_seconds: Annotated[float, Field(gt=0)] = 3_600.0
    """How often one worker of all removes what nothing needs any more."""
    grace_seconds: Annotated[float, Field(gt=0)] = 24 * 3_600.0
    """How long what nothing needs any more stays; longer than the longest upload or source image takes."""
    upload_grace_seconds: Annotated[float, Field(gt=0)] = 30 * 24 * 3_600.0
    """How long an uploaded image stays that no job uses."""
    pause_seconds: Annotated[float, Field(gt=0)] = 5.0
    """How long an image waits after a service failed it, unless the service says; doubled while the cause is open."""
    images_in_flight: Annotated[int, Field(ge=1)] = 8
    """Source images that one worker process works on at a time, so that the model services can batch."""
    images_per_message: Annotated[int, Field(ge=1)] = 16
    """After so many images a step hands over to a new message, so that no step runs for hours."""

    @property
    def deployed(self) -> bool:
        """Whether workers are processes of their own, so that this is more than one person's machine."""
        return not self.broker_url.startswith("memory:")

    @property
    def service_urls(self) -> dict[ServiceName, str]:
        """Where each model service listens."""
        return {
            "caption_service": self.caption_url,
            "llm_service": self.llm_url,
            "diffusion_service": self.diffusion_url,
            "evaluator_service": self.evaluator_url,
        }


def read_settings() -> Settings:
    """The settings of the environment. Raises SystemExit with a sentence that names the variable that is wrong."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(f"CONTRAFACT_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
        raise SystemExit(f"a setting is wrong: {wrong}") from error
