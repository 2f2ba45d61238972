"""`contrafact replay ID`: render a counterfactual again through the services, and compare it bit for bit.

The method runs again on the same source image, and nothing is recorded. Each reply of a service is compared with the
recorded reply to the same request under the same weights. This shows the cause of a difference: other weights, another
reply to the same request, other code, or other pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from gateway.database.columns import CounterfactualColumns
from gateway.database.sessions import Sessions, reading
from gateway.database.tables import Counterfactual, Report, SourceImage
from gateway.jobs.designs import values_of, with_values
from gateway.methods import METHODS, JobMethod
from gateway.methods.counterfactual import MethodCounterfactual
from gateway.model_services.clients import ModelServices
from gateway.model_services.image_shelf import ImageShelf
from gateway.model_services.recorded import RecordedServices
from gateway.queue.leases import Lease
from gateway.worker import image_step
from gateway.worker.image_step import row_of
from gateway.worker.image_work import ImageWork, source_of
from shared.media.images import decode
from shared.media.storage import ObjectMissing, ObjectStore
from shared.problems import NotFound
from shared.profiles.weights import FROM_SERVER
from shared.schemas.designs import ChosenValues
from shared.schemas.service import SERVICES, ServiceInfo
from shared.service.endpoints import Endpoint, Reply, Request, Services

_MAX_TEXT = 120


@dataclass(frozen=True, slots=True)
class Replay:
    """How the counterfactual differs from the stored one (empty: equal), and possible causes.

    `calls` counts the calls of services; `recorded` of them have a recorded reply under the same weights.
    """

    id: str
    calls: int
    recorded: int
    differences: list[str]
    causes: list[str]

    @property
    def equal(self) -> bool:
        """Whether image, texts, seed, parameters, scores and verdict are all equal."""
        return not self.differences


@dataclass(slots=True)
class ComparedServices(Services):
    """The plain services; each reply is compared with the recorded one."""

    services: ModelServices
    records: RecordedServices
    calls: int = 0
    recorded: int = 0
    mismatches: list[str] = field(default_factory=list)

    def call(self, endpoint: Endpoint[Request, Reply], request: Request) -> Reply:
        """The service's new reply, also if one is recorded."""
        reply = self.services.call(endpoint, request)
        agrees = self.records.agrees(endpoint, request, reply)
        self.calls += 1
        self.recorded += agrees is not None
        if agrees is False:
            self.mismatches.append(f"{endpoint.service} answers the same {endpoint.path} request differently now")
        return reply


def replay(sessions: Sessions, store: ObjectStore, services: ModelServices, counterfactual_id: str) -> Replay:
    """Render a counterfactual (an edit or a null arm) again. Raises NotFound, and what services and methods raise."""
    row, work, stored = _load(sessions, counterfactual_id)
    shelf = ImageShelf(store, sessions, work.owner_id)
    compared = ComparedServices(services, RecordedServices(services, sessions, shelf, work.owner_id))
    method = next(method for method in work.methods if method.name == row.method)
    repeated = _repeat(row, method, work, shelf, compared)
    if repeated is None:
        differences = [f"{row.method} no longer makes counterfactual number {row.ordinal} of this source image"]
    else:
        differences = list(_differences(row, row_of(work, method, repeated, shelf), shelf))
    causes: list[str] = []
    if differences:
        rerun: dict[str, ServiceInfo] = {name: services.info(name) for name in SERVICES}
        causes = [*_weights_changed(stored, rerun), *dict.fromkeys(compared.mismatches), *_nondeterminism(rerun)]
    return Replay(counterfactual_id, compared.calls, compared.recorded, differences, causes)


def _load(sessions: Sessions, counterfactual_id: str) -> tuple[Counterfactual, ImageWork, dict[str, ServiceInfo]]:
    """The row, its work, and the services recorded in the job's report (none without a report)."""
    with reading(sessions) as session:
        row = session.get(Counterfactual, counterfactual_id)
        if row is None:
            raise NotFound(f"there is no counterfactual {counterfactual_id!r}; results and pages have their ids")
        report = session.get(Report, row.job_id)
    work = image_step.load(sessions, Lease(SourceImage, row.source_image_id, row.job_id, ""))
    if work is None:
        raise NotFound(f"the source image of {counterfactual_id} was deleted meanwhile")
    return row, work, report.results.made.services if report else {}


def _repeat(
    row: Counterfactual, method: JobMethod, work: ImageWork, shelf: ImageShelf, services: Services
) -> MethodCounterfactual | None:
    run, source = method.spec.function, source_of(work, shelf)
    if work.values is not None and values_of(method):
        method = _of_round(method, row)
    counterfactuals = run(source, work.task_description, services, method.parameters, work.seed)
    if work.values is None:
        return next((repeated for repeated in counterfactuals if repeated.ordinal == row.ordinal), None)
    return next((repeated for repeated in counterfactuals if _is_same(row, repeated)), None)


def _of_round(method: JobMethod, row: Counterfactual) -> JobMethod:
    """The method with the values that its source image got in the row's round, from the row's lineage."""
    parameters = row.lineage.get("parameters")
    values = parameters.get("values", []) if isinstance(parameters, dict) else []
    return with_values(method, TypeAdapter(ChosenValues).validate_python(values))


def _is_same(row: Counterfactual, repeated: MethodCounterfactual) -> bool:
    """Whether a repetition has the row's arm, seed, captions and rendering; ordinals count over all rounds."""
    edit = repeated.edit
    return (row.arm, row.seed, row.new_caption, row.lineage.get("rendering")) == (
        repeated.arm,
        repeated.seed,
        edit.new_caption if edit else "",
        repeated.lineage.get("rendering"),
    ) and [change["to_value"] for change in row.changes] == [
        change.to_value for change in (edit.changes if edit else ())
    ]


def _differences(stored: Counterfactual, repeated: CounterfactualColumns, shelf: ImageShelf) -> Iterator[str]:
    """Differences in the columns that a repetition must reproduce, and in the lineage that explains them."""
    for name in ("revision", "rendering"):
        yield from _change(f"{name} of the method", stored.lineage.get(name), repeated["lineage"].get(name))
    chosen, now = (with_defaults(stored.method, of.get("parameters")) for of in (stored.lineage, repeated["lineage"]))
    yield from _change("parameters of the method", chosen, now)
    yield from _change("arm", stored.arm, repeated["arm"])
    yield from _change("seed", stored.seed, repeated["seed"])
    yield from _change("caption", stored.caption, repeated["caption"])
    yield from _change("changes", stored.changes, repeated["changes"])
    yield from _change("new caption", stored.new_caption, repeated["new_caption"])
    yield from _change("scores", stored.scores, repeated["scores"])
    yield from _change("accepted", stored.accepted, repeated["accepted"])
    yield from _change("check", stored.check, repeated["check"])
    if stored.control_digest != repeated["control_digest"]:
        yield f"control image: {_pixels_changed(stored.control_digest, repeated['control_digest'], shelf)}"
    if stored.image_digest != repeated["image_digest"]:
        yield f"image: {_pixels_changed(stored.image_digest, repeated['image_digest'], shelf)}"


def with_defaults(method: str, parameters: object) -> object:
    """A lineage's parameters; those that it leaves out, or the method did not have then, are at their defaults."""
    if not isinstance(parameters, Mapping):
        return parameters
    fields = METHODS[method].parameters.model_fields
    defaults = {name: field.get_default(call_default_factory=True) for name, field in fields.items()}
    return {
        **to_jsonable_python({key: value for key, value in defaults.items() if key not in parameters}),
        **parameters,
    }


def _change(name: str, stored: object, repeated: object) -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(repeated, Mapping):
        for key in sorted({*stored, *repeated}):
            yield from _change(f"{name}, {key}", stored.get(key), repeated.get(key))
    elif stored != repeated:
        yield f"{name}: {str(stored)[:_MAX_TEXT]} then, {str(repeated)[:_MAX_TEXT]} now"


def _pixels_changed(stored: str | None, repeated: str | None, shelf: ImageShelf) -> str:
    if stored is None or repeated is None:
        return f"{'none' if stored is None else stored[:12]} then, {'none' if repeated is None else repeated[:12]} now"
    try:
        before = decode(shelf.load(stored)).astype(int)
    except ObjectMissing:
        return f"{stored[:12]} then, which the object store has lost, {repeated[:12]} now"
    after = decode(shelf.load(repeated)).astype(int)
    if before.shape != after.shape:
        return f"{before.shape[1]} × {before.shape[0]} then, {after.shape[1]} × {after.shape[0]} now"
    off = np.abs(before - after).max(axis=2)
    return f"{np.count_nonzero(off):,} of {off.size:,} pixels differ, by at most {off.max()} of 255"


def _weights_changed(stored: Mapping[str, ServiceInfo], repeated: Mapping[str, ServiceInfo]) -> Iterator[str]:
    """Services whose revision changed, with the weights or other causes of the change."""
    if not stored:
        yield "the job has no report, so its weights are unknown"
    for name in sorted(stored):
        before, after = stored[name], repeated.get(name)
        if after is None or before.revision == after.revision:
            continue
        loaded = {item.role: (item.id, item.revision[:12]) for item in after.weights}
        changed = [
            f"{item.role} {item.id}@{item.revision[:12]} then, {'@'.join(loaded.get(item.role, ('none',)))} now"
            for item in before.weights
            if loaded.get(item.role) != (item.id, item.revision[:12])
        ]
        same_weights = (
            f"the same weights under other code, libraries, device or batch shapes ({before.device}, {after.device})"
        )
        yield f"{name} has changed: {'; '.join(changed) or same_weights}"


def _nondeterminism(now: Mapping[str, ServiceInfo]) -> Iterator[str]:
    for name, info in now.items():
        for weights in info.weights:
            if weights.dtype == FROM_SERVER:
                yield f"{name} asks a server for {weights.role} ({weights.id}), which may answer otherwise every time"
    nondeterministic = [name for name, info in now.items() if not info.deterministic]
    if nondeterministic:
        services = ", ".join(nondeterministic)
        yield f"{services} run without CONTRAFACT_DETERMINISTIC=true, so bits may depend on what else is in a batch"
