"""What every model service answers about itself."""

from __future__ import annotations

from shared.schemas.base import Contract


class WeightsInfo(Contract):
    """One set of weights that a service has loaded. `revision` is a hub commit, or the digest of local files."""

    role: str
    id: str
    revision: str
    dtype: str
    licence: str


class ServiceInfo(Contract):
    """`GET /v1/info`. `revision` changes whenever a reply to the same request may change: it keys recorded calls."""

    service: str
    profile: str
    device: str
    deterministic: bool
    revision: str
    weights: list[WeightsInfo]
    version: str
