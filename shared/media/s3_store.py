"""The object store on an S3 server, for deployments. An embedded system works without the S3 client library."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import IO

import urllib3
from minio import Minio
from minio.error import MinioException, S3Error

from shared.media.storage import ObjectMissing, StoredObject, check_key
from shared.problems import DependencyFailed

_PART_BYTES = 16 * 1024**2
_CHUNK_BYTES = 1024**2


class S3Store:
    """Objects in one bucket of an S3 server. `endpoint` is host:port without a scheme; `secure` means https."""

    def __init__(self, endpoint: str, bucket: str, access_key: str, secret_key: str, secure: bool = True) -> None:
        timeout = urllib3.Timeout(connect=5, read=60)
        pool = urllib3.PoolManager(timeout=timeout, maxsize=32, retries=urllib3.Retry(3, backoff_factor=0.2))
        self._client = Minio(endpoint, access_key, secret_key, secure=secure, http_client=pool)
        self._bucket = bucket

    def create_bucket(self) -> None:
        """Create the bucket if it does not exist."""
        with _translate_errors():
            if not self._client.bucket_exists(self._bucket):
                self._client.make_bucket(self._bucket)

    def put(self, key: str, data: bytes) -> None:
        """One PUT, which S3 stores completely or not at all."""
        with _translate_errors():
            self._client.put_object(self._bucket, check_key(key), io.BytesIO(data), len(data))

    def put_file(self, key: str, file: IO[bytes]) -> None:
        """One PUT, or a multipart upload."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        with _translate_errors():
            self._client.put_object(self._bucket, check_key(key), file, size, part_size=_PART_BYTES)

    def link(self, key: str, seconds: int) -> str:
        """A presigned GET."""
        with _translate_errors():
            return str(self._client.presigned_get_object(self._bucket, check_key(key), timedelta(seconds=seconds)))

    def get(self, key: str) -> bytes:
        """One GET, read to the end."""
        with _translate_errors():
            response = self._client.get_object(self._bucket, check_key(key))
            try:
                return bytes(response.read())
            finally:
                response.close()
                response.release_conn()

    def pieces(self, key: str) -> Iterator[bytes]:
        """One GET, read piece by piece."""
        with _translate_errors():
            return _chunks(self._client.get_object(self._bucket, check_key(key)))

    def exists(self, key: str) -> bool:
        """One HEAD."""
        try:
            with _translate_errors():
                self._client.stat_object(self._bucket, check_key(key))
        except ObjectMissing:
            return False
        return True

    def delete(self, key: str) -> None:
        """One DELETE; S3 gives the same reply for a missing object."""
        with _translate_errors():
            self._client.remove_object(self._bucket, check_key(key))

    def iterate(self, prefix: str = "") -> Iterator[StoredObject]:
        """List objects, page by page."""
        with _translate_errors():
            for item in self._client.list_objects(self._bucket, prefix, recursive=True):
                yield StoredObject(str(item.object_name), int(item.size or 0), item.last_modified or datetime.now(UTC))


def _chunks(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    with _translate_errors():
        try:
            yield from response.stream(_CHUNK_BYTES)
        finally:
            response.close()
            response.release_conn()


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate the client library's errors into the project's."""
    try:
        yield
    except S3Error as error:
        if error.code == "NoSuchKey":
            raise ObjectMissing(error.object_name) from None
        raise DependencyFailed(f"the object store failed: {error}") from error
    except (MinioException, urllib3.exceptions.HTTPError) as error:
        raise DependencyFailed(f"the object store failed: {error}") from error
