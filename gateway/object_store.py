"""The object store that the settings name. `python -m gateway.object_store` makes its bucket unless it is there."""

from __future__ import annotations

from pathlib import Path

from gateway.settings import Settings
from shared.storage import DirectoryStore, ObjectStore, S3Store


def open_store(settings: Settings) -> ObjectStore:
    """The store of `settings.object_store`. Raises ValueError for a form that it does not know."""
    kind, _, name = settings.object_store.partition(":")
    if kind == "directory" and name:
        return DirectoryStore(Path(name), settings.gateway_url)
    if kind == "s3" and name:
        secret = settings.s3_secret_key.get_secret_value()
        return S3Store(settings.s3_endpoint, name, settings.s3_access_key, secret, settings.s3_secure)
    raise ValueError(f"CONTRAFACT_OBJECT_STORE must be directory:PATH or s3:BUCKET: {settings.object_store!r}")


def main() -> None:
    """Make the bucket of the environment's store; a directory needs none."""
    settings = Settings()
    store = open_store(settings)
    if isinstance(store, S3Store):
        store.create_bucket()
    print(f"{settings.object_store} is there")


if __name__ == "__main__":
    main()
