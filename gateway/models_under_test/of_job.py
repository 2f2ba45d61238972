"""The models under test of a job: aliases of the profile, and uploads of its owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from gateway.database.tables import Job, ModelUnderTest
from shared.media.storage import model_key
from shared.problems import NotFound
from shared.schemas.base import ImagePayload
from shared.schemas.evaluation import ModelRequest, UploadedModel
from shared.service.endpoints import Endpoint

Request = TypeVar("Request", bound=ModelRequest)
NO_FIELDS: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TestedModel:
    """A model under test: an alias, or an upload with its `digest`, and the object's `key` unless it was deleted."""

    name: str
    digest: str | None = None
    key: str | None = None

    def request(
        self,
        endpoint: Endpoint[Request, Any],
        images: list[ImagePayload],
        link: Callable[[str], str],
        fields: Mapping[str, Any] = NO_FIELDS,
    ) -> Request:
        """A request to an endpoint of the evaluator, with further `fields`. Raises NotFound for a deleted model."""
        return endpoint.request(model=self.digest or self.name, images=images, upload=self._upload(link), **fields)

    def _upload(self, link: Callable[[str], str]) -> UploadedModel | None:
        if self.digest is None:
            return None
        if self.key is None:
            raise NotFound(
                f"the model under test {self.name!r} was deleted; add the same files again, then retry the job"
            )
        return UploadedModel(digest=self.digest, url=link(self.key))


def models_of(session: Session, job: Job) -> tuple[TestedModel, ...]:
    """All models under test of a job, in its order."""
    rows = session.execute(
        select(ModelUnderTest.digest, ModelUnderTest.id)
        .where(ModelUnderTest.owner_id == job.owner_id, ModelUnderTest.digest.in_(job.uploaded_models.values()))
        .order_by(ModelUnderTest.id)
    )
    keys = {digest: model_key(digest, model_id) for digest, model_id in rows}
    digests = {name: job.uploaded_models.get(name) for name in job.models}
    return tuple(TestedModel(name, digest, keys.get(digest or "")) for name, digest in digests.items())
