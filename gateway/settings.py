"""Settings of gateway and worker, read once from the environment (`CONTRAFACT_…`) at the start."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from shared.schemas.base import MAX_WORKING_SIDE
from shared.schemas.service import ServiceName

DATABASE_CONNECTIONS = 32


def _database_url(url: str) -> str:
    """The URL with the driver that we install. Raises ValueError for other databases."""
    kind, _, rest = url.partition("://")
    if kind in ("postgres", "postgresql"):  # as hosting services write it
        return f"postgresql+psycopg://{rest}"
    if kind not in ("sqlite", "postgresql+psycopg"):
        raise ValueError("it must be sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/NAME")
    return url


class Settings(BaseSettings):
    """Settings of gateway and worker. Every field is one variable, for example `CONTRAFACT_DATABASE_URL`."""

    # Values that may hold a password are not in the repr, and errors do not repeat the input.
    model_config = SettingsConfigDict(
        env_prefix="CONTRAFACT_",
        extra="ignore",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    database_url: Annotated[str, Field(repr=False), AfterValidator(_database_url)] = "sqlite:///contrafact.db"
    """`sqlite:///PATH`, or `postgresql+psycopg://USER:PASSWORD@HOST/NAME`."""
    database_connections: Annotated[int, Field(ge=2)] = DATABASE_CONNECTIONS
    """Connections to Postgres that one process opens at most; all processes together must stay below its limit."""
    broker_url: Annotated[str, Field(repr=False)] = "memory://localhost"
    """Celery's broker: `redis://HOST:6379/0`; in memory only if gateway and worker share a process."""
    profile: str = "tiny"
    """A shipped one (`tiny`, `tiny-roads`, `photographs`, `paper`, `paper-tgi`, `modern`, `modern-24gb`,
    `modern-80gb`) or a TOML."""

    object_store: str = "directory:objects"
    """`directory:PATH`, or `s3:BUCKET` at `CONTRAFACT_S3_ENDPOINT`."""
    s3_endpoint: str = ""
    """Host and port of the S3 server, without a scheme."""
    s3_access_key: str = ""
    """Its access key."""
    s3_secret_key: SecretStr = SecretStr("")
    """Its secret key."""
    s3_secure: bool = False
    """Whether it speaks https."""

    caption_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8001"
    """Where caption_service answers."""
    llm_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8002"
    """Where llm_service answers."""
    diffusion_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8003"
    """Where diffusion_service answers."""
    evaluator_url: Annotated[str, Field(repr=False)] = "http://127.0.0.1:8004"
    """Where evaluator_service answers."""
    gateway_url: str = "http://127.0.0.1:8000"
    """Where the evaluator fetches uploaded models from this gateway, if the object store is a directory."""
    service_deadline_seconds: Annotated[float, Field(gt=0)] = 600.0
    """The longest call of a model service, queueing included."""
    service_wait_seconds: Annotated[float, Field(ge=0)] = 120.0
    """How long a step waits for busy, starting or unreachable services: a call for an image, an analysis in all."""

    authentication: bool = False
    """Require API keys. Without them only this machine is served, as one owner."""
    key_requests_per_minute: Annotated[int, Field(ge=1)] = 6_000
    """Requests per minute and key, unless the key has its own limit."""
    key_bytes_per_hour: Annotated[int, Field(ge=1)] = 64 * 1024**3
    """Bytes per hour and key, unless the key has its own limit."""
    session_hours: Annotated[float, Field(gt=0)] = 12.0
    """How long a browser stays logged in."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    """A second port of gateway and worker for `/healthz`, `/readyz` and `/metrics`, without keys; 0: none."""
    max_request_bytes: int = 2 * 1024**3
    """The largest `POST /jobs`."""
    max_archive_bytes: int = 8 * 1024**3
    """Unpacked bytes of one archive."""
    max_spooled_bytes: Annotated[int, Field(ge=1)] = 12 * 1024**3
    """Bytes of all uploads that one gateway receives at a time; its `/tmp` needs room for them and for two models."""
    max_image_bytes: int = 64 * 1024**2
    """The largest image file."""
    max_image_pixels: Annotated[int, Field(ge=1)] = 52_000_000
    """Width × height of the largest image; give model services and trainer the same."""
    working_side: Annotated[int, Field(ge=256, le=MAX_WORKING_SIDE)] = 2_048
    """Longer side in pixels at which images are kept, edited and tested; larger ones are scaled down at intake."""
    max_images_per_job: int = 100_000
    """Source images of one job."""
    max_model_bytes: int = 1024**3
    """The largest upload of a model under test, packed and unpacked."""
    max_models_per_owner: Annotated[int, Field(ge=0)] = 50
    """Uploaded models under test that one owner may keep."""

    lease_seconds: Annotated[float, Field(gt=0)] = 60.0
    """A worker that has not renewed its leases for this long counts as dead."""
    lease_renewal_seconds: Annotated[float, Field(gt=0)] = 15.0
    """Interval at which a worker renews its leases."""
    sweep_seconds: Annotated[float, Field(gt=0)] = 10.0
    """Interval at which a worker looks for expired leases and for waiting work."""
    max_attempts: Annotated[int, Field(ge=1)] = 3
    """Failures caused by the image itself before the image fails."""
    max_lost_leases: Annotated[int, Field(ge=1)] = 20
    """Lost leases (failures of unknown cause) before the image fails."""
    housekeeping_seconds: Annotated[float, Field(gt=0)] = 3_600.0
    """Interval of housekeeping, which one worker runs for all."""
    listing_seconds: Annotated[float, Field(gt=0)] = 24 * 3_600.0
    """Interval at which housekeeping also lists the whole object store, to find objects without a row."""
    grace_seconds: Annotated[float, Field(gt=0)] = 24 * 3_600.0
    """How long unreferenced data stays; must exceed the longest upload and the longest work on an image."""
    upload_grace_seconds: Annotated[float, Field(gt=0)] = 30 * 24 * 3_600.0
    """How long an uploaded image that no job uses stays."""
    pause_seconds: Annotated[float, Field(gt=0)] = 5.0
    """Delay of a retry after a service failed, unless the service names one; doubled while the cause is unknown."""
    max_hold_seconds: Annotated[float, Field(ge=0)] = 12 * 3_600.0
    """How long images wait, without lost leases, for a service that fails for every image."""
    images_in_flight: Annotated[int, Field(ge=1)] = 8
    """Source images that one worker process works on concurrently, so that the model services can batch."""
    images_per_message: Annotated[int, Field(ge=1)] = 16
    """Images per step; a new message continues after that, so that no step runs for hours."""

    @property
    def deployed(self) -> bool:
        """Whether workers are separate processes, so that this is a deployment."""
        return not self.broker_url.startswith("memory:")

    @property
    def service_urls(self) -> dict[ServiceName, str]:
        """The URL of each model service."""
        return {
            "caption_service": self.caption_url,
            "llm_service": self.llm_url,
            "diffusion_service": self.diffusion_url,
            "evaluator_service": self.evaluator_url,
        }


def read_settings() -> Settings:
    """Read the settings. Raises SystemExit with a sentence that names the wrong variable."""
    try:
        return Settings()
    except ValidationError as error:
        wrong = "; ".join(f"CONTRAFACT_{'_'.join(map(str, e['loc'])).upper()}: {e['msg']}" for e in error.errors())
        raise SystemExit(f"a setting is wrong: {wrong}") from error
