"""The object store of the settings. `python -m gateway.storage.object_store` creates its bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gateway.settings import Settings
from shared.media.storage import DirectoryStore
from shared.media.stores import store_at

if TYPE_CHECKING:
    from shared.media.s3_store import S3Store


def open_store(settings: Settings) -> DirectoryStore | S3Store:
    """Open `settings.object_store`. Raises ValueError for an unknown form of address."""
    return store_at(
        settings.object_store,
        settings.gateway_url,
        settings.s3_endpoint,
        settings.s3_access_key,
        settings.s3_secret_key.get_secret_value(),
        settings.s3_secure,
    )


def main() -> None:
    """Create the bucket of the configured store. A directory needs none."""
    settings = Settings()
    store = open_store(settings)
    if not isinstance(store, DirectoryStore):
        store.create_bucket()
    print(f"{settings.object_store} exists")


if __name__ == "__main__":
    main()
