"""`contrafact doctor`: checks a deployment. Each answer is a sentence; a fault says what to do.

It runs with the environment of gateway and worker, and checks settings, database and schema, broker, object store, the
four model services with their weights and GPUs, and all clocks.

Checks that the services have loaded the profile's weights and have enough memory for them.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx
from kombu.exceptions import OperationalError as BrokerError
from pydantic import ValidationError
from sqlalchemy import Select, or_, select
from sqlalchemy.exc import ArgumentError, ProgrammingError

from gateway.auth.keys import any_key, epoch_now
from gateway.database.sessions import DATABASE_AWAY, database_now, driver_message, open_engine, open_sessions, reading
from gateway.database.tables import Job, SourceImage
from gateway.operations.startup import database_name, missing_database, schema_fault
from gateway.settings import Settings
from gateway.storage.object_store import open_store
from shared import __version__
from shared.certificates import tls_fault, trusted
from shared.problems import Problem, from_reply
from shared.profiles.instruct import InstructPipeline
from shared.profiles.profile import Profile, ProfileError, load_profile
from shared.profiles.unets import MergedLora
from shared.profiles.weights import Server, Weights, digest_folder
from shared.schemas.service import GpuInfo, ServiceInfo, ServiceName
from shared.service.celery_app import broker_fault, open_celery
from shared.service.endpoints import INFO, READYZ
from shared.service.logging import mask

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
CLOCK_SECONDS = 5.0  # HTTP dates have whole seconds; S3 refuses signatures that are 15 minutes off
IDLE_SECONDS = 120.0
PROBE_SECONDS = 10.0
HOST_GIGABYTES = 2.0  # of a service beside weights: Python, torch, CUDA


@dataclass(frozen=True, slots=True)
class PartAnswer:
    """The result for one part of the deployment."""

    part: str
    fine: bool
    sentence: str


@dataclass(frozen=True, slots=True)
class Clock:
    """A clock's time minus ours, in seconds."""

    of: str
    ahead: float


def examine(settings: Settings) -> Iterator[PartAnswer]:
    """Yield all answers, one by one. Raises nothing: a failure is an answer."""
    clocks: list[Clock] = []
    yield from _access(settings)
    yield from _database(settings, clocks)
    yield from _broker(settings, clocks)
    yield from _object_store(settings, clocks)
    try:
        profile = load_profile(settings.profile)
    except ProfileError as error:
        yield PartAnswer("profile", False, str(error))
    else:
        yield PartAnswer("profile", True, f"{settings.profile}: {profile.profile.description}")
        yield from _services(settings, profile, clocks)
    yield from _clocks(clocks)


def _access(settings: Settings) -> Iterator[PartAnswer]:
    if settings.authentication:
        yield PartAnswer("access", True, "API keys are required")
    elif settings.deployed:
        yield PartAnswer(
            "access",
            False,
            "API keys are not required, so the gateway will not start: set CONTRAFACT_AUTHENTICATION=true",
        )
    else:
        yield PartAnswer("access", True, "API keys are not required, so only this machine is served")


def _database(settings: Settings, clocks: list[Clock]) -> Iterator[PartAnswer]:
    try:
        name = database_name(settings)
        engine = open_engine(settings.database_url)
    except (ArgumentError, ImportError) as error:
        yield PartAnswer("database", False, f"CONTRAFACT_DATABASE_URL is not a database URL: {mask(str(error))}")
        return
    if missing := missing_database(engine.url):
        yield PartAnswer("database", False, missing)
        return
    try:
        with reading(open_sessions(engine)) as session:
            before = time.time()
            theirs = session.scalar(select(epoch_now())) or 0.0
            clocks.append(Clock("the database", theirs - (before + time.time()) / 2))
            if wrong := schema_fault(session.connection()):
                yield PartAnswer("database", False, wrong)
                return
            yield PartAnswer("database", True, f"{name} answers, and its schema is current")
            if settings.authentication and not any_key(session):
                yield PartAnswer(
                    "keys", False, "there is no API key, so nobody can log in: run `contrafact keys create NAME`"
                )
            waits = session.scalar(select(_waiting_alone().exists()))
            if waits:
                yield PartAnswer(
                    "workers",
                    False,
                    f"source images have waited for more than {IDLE_SECONDS:.0f} s and no worker holds a lease: "
                    "start a worker, or check the workers' logs",
                )
            else:
                yield PartAnswer("workers", True, "no work waits without a worker")
    except (*DATABASE_AWAY, ProgrammingError) as error:
        yield PartAnswer("database", False, f"{name} does not answer: {mask(driver_message(error))}")
    finally:
        engine.dispose()


def _waiting_alone() -> Select[str]:
    """Images that have waited for a lease for `IDLE_SECONDS`, while no lease exists at all."""
    leased = select(SourceImage.id).where(SourceImage.state == "leased")
    due = or_(SourceImage.not_before.is_(None), SourceImage.not_before < database_now(-IDLE_SECONDS))
    old = SourceImage.updated_at < database_now(-IDLE_SECONDS)
    pending = select(SourceImage.id).join(Job).where(Job.state == "running", SourceImage.state == "pending")
    return pending.where(due, old, ~leased.exists())


def _broker(settings: Settings, clocks: list[Clock]) -> Iterator[PartAnswer]:
    if not settings.deployed:
        yield PartAnswer("broker", True, "in memory, for a gateway and a worker in one process")
        return
    name, celery = mask(settings.broker_url), open_celery(settings.broker_url)
    if fault := broker_fault(celery):
        yield PartAnswer("broker", False, fault)
        return
    try:
        with celery.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=PROBE_SECONDS)
            if settings.broker_url.startswith("redis"):
                before = time.time()
                seconds, microseconds = connection.default_channel.client.time()
                clocks.append(Clock("the broker", seconds + microseconds / 1e6 - (before + time.time()) / 2))
    except (BrokerError, OSError) as error:
        yield PartAnswer("broker", False, f"{name} does not answer, so work starts late: {mask(str(error))}")
        return
    yield PartAnswer("broker", True, f"{name} answers")


def _object_store(settings: Settings, clocks: list[Clock]) -> Iterator[PartAnswer]:
    key, data = f"doctor/{uuid.uuid4().hex}", uuid.uuid4().bytes
    try:
        store = open_store(settings)
        store.put(key, data)
        is_equal = store.get(key) == data
        store.delete(key)
    except (Problem, ValueError, OSError) as error:
        hint = "; `python -m gateway.storage.object_store` creates the bucket" if "NoSuchBucket" in str(error) else ""
        yield PartAnswer("object store", False, f"{settings.object_store}: {mask(str(error))}{hint}")
        return
    if not is_equal:
        yield PartAnswer("object store", False, f"{settings.object_store} returned other bytes than were stored")
        return
    if settings.object_store.startswith("s3:"):
        scheme = "https" if settings.s3_secure else "http"
        _note_clock(clocks, "the object store", f"{scheme}://{settings.s3_endpoint}/")
    elif settings.deployed:
        yield PartAnswer("object store", True, "a directory: every gateway and worker must see the same one")
    yield PartAnswer("object store", True, f"{settings.object_store} stores, returns and deletes objects")


def _note_clock(clocks: list[Clock], name: str, url: str) -> None:
    """Note the clock of a server by its Date header; skip a server without one."""
    try:
        reply = httpx.get(url, timeout=PROBE_SECONDS, trust_env=False)
    except httpx.HTTPError:
        return
    _read_clock(clocks, name, reply)


def _read_clock(clocks: list[Clock], name: str, reply: httpx.Response) -> None:
    if "Date" in reply.headers:
        # The header drops fractions of a second, half a second on average.
        clocks.append(Clock(name, parsedate_to_datetime(reply.headers["Date"]).timestamp() + 0.5 - time.time()))


def _services(settings: Settings, profile: Profile, clocks: list[Clock]) -> Iterator[PartAnswer]:
    weights_by_service = needed_weights(profile)
    infos: dict[ServiceName, ServiceInfo] = {}
    for name, url in settings.service_urls.items():
        answer = _ask(name, url, clocks)
        if isinstance(answer, str):
            yield PartAnswer(name, False, answer)
            continue
        infos[name] = answer
        faults = list(service_faults(answer, settings.profile, weights_by_service[name]))
        for fault in faults:
            yield PartAnswer(name, False, fault)
        if not faults:
            weights = ", ".join(f"{item.id}@{item.revision[:12]}" for item in answer.weights)
            yield PartAnswer(name, True, f"ready on {device_of(answer)} with {weights}")
        if hint := onnx_hint(answer):
            yield PartAnswer(name, True, hint)
    if len({info.deterministic for info in infos.values()}) > 1:
        deterministic = ", ".join(sorted(name for name, info in infos.items() if info.deterministic))
        yield PartAnswer(
            "services",
            False,
            f"only {deterministic} run with CONTRAFACT_DETERMINISTIC=true: set it for all of them, or for none",
        )
    for fits, sentence in [*memory(infos, weights_by_service), *host_memory(infos, profile)]:
        yield PartAnswer("memory", fits, sentence)


def _ask(name: ServiceName, url: str, clocks: list[Clock]) -> ServiceInfo | str:
    """A service's description of itself, or its fault in words."""
    variable = f"CONTRAFACT_{name.removesuffix('_service').upper()}_URL"
    try:
        reply = httpx.get(f"{url}{INFO.path}", timeout=PROBE_SECONDS, trust_env=False, verify=trusted())
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if fault := tls_fault(error):
            return f"{mask(url)} cannot be reached: {fault}"
        return f"nothing answers at {mask(url)}: start the service, or set {variable} ({mask(str(error))})"
    _read_clock(clocks, name, reply)
    if reply.status_code != 200:
        return f"not ready: {from_reply(reply.status_code, reply.content).detail}"
    try:
        info = INFO.reply.model_validate_json(reply.content)
    except ValidationError:
        return f"the server at {mask(url)} is not a service of this version of Contrafact"
    if info.service != name:
        return f"{mask(url)} is {info.service}: set {variable} to the right one"
    return _unready(url) or info


def _unready(url: str) -> str:
    """Why a loaded service is not ready (the server that its profile names is away); empty if it is ready."""
    try:
        reply = httpx.get(f"{url}{READYZ}", timeout=PROBE_SECONDS, trust_env=False, verify=trusted())
    except httpx.HTTPError as error:
        return f"nothing answers at {mask(url)} any more ({mask(str(error))}): read the service's log"
    return f"not ready: {from_reply(reply.status_code, reply.content).detail}" if reply.status_code == 503 else ""


def _clocks(clocks: Sequence[Clock]) -> Iterator[PartAnswer]:
    off = [clock for clock in clocks if abs(clock.ahead) > CLOCK_SECONDS]
    for clock in off:
        direction = "ahead of" if clock.ahead > 0 else "behind"
        yield PartAnswer(
            "clocks",
            False,
            f"the clock of {clock.of} is {abs(clock.ahead):.0f} s {direction} this one: run NTP on both",
        )
    if clocks and not off:
        widest = max(abs(clock.ahead) for clock in clocks)
        yield PartAnswer("clocks", True, f"{len(clocks)} clocks agree with this one within {max(1.0, widest):.0f} s")


def needed_weights(profile: Profile) -> dict[ServiceName, list[Weights | Server]]:
    """What each service must have loaded under a profile."""
    instruct = profile.diffusion.instruct
    diffusion: list[Weights | Server | None] = [
        profile.diffusion.base,
        profile.diffusion.unet,
        *profile.diffusion.loras,
        profile.diffusion.vae,
        *profile.diffusion.controlnets.values(),
        profile.diffusion.segmenter,
        profile.diffusion.depth,
        profile.diffusion.hed,
        profile.diffusion.background_remover,
        profile.diffusion.few_step.weights if profile.diffusion.few_step else None,
        *(instruct.sources if instruct else []),
    ]
    language, evaluator = profile.language, profile.evaluator
    sources: Mapping[ServiceName, Sequence[Weights | Server | None]] = {
        "caption_service": [profile.caption.weights, profile.caption.server],
        "llm_service": [language.weights, language.adapter, language.server, language.masked_words],
        "diffusion_service": diffusion,
        "evaluator_service": [
            evaluator.scorer,
            evaluator.second_scorer,
            evaluator.text_embedder,
            evaluator.segmenter,
            evaluator.judge,
            *evaluator.models_under_test.values(),
        ],
    }
    return {name: [source for source in weights if source is not None] for name, weights in sources.items()}


def gigabytes(weights: Sequence[Weights | Server]) -> float:
    """Device memory of weights in gigabytes; weights of external servers and merged LoRAs do not count."""
    counted = (source for source in weights if isinstance(source, Weights) and not isinstance(source, MergedLora))
    return sum(source.gigabytes for source in counted)


def service_faults(info: ServiceInfo, profile: str, weights: Sequence[Weights | Server]) -> Iterator[str]:
    """Differences between a service and the profile, in sentences."""
    if info.version != __version__:
        yield f"it is version {info.version}, this is {__version__}: run the same version of both"
    if info.profile != profile:
        yield f"it runs profile {info.profile}, gateway and worker {profile}: set the same CONTRAFACT_PROFILE for all"
        return
    loaded = {(item.id, item.revision) for item in info.weights}
    ids = {item.id for item in info.weights}
    for source in weights:
        name = source.id if isinstance(source, Weights) else source.model
        revision = _revision(source)
        if name not in ids:
            yield f"it has not loaded {name}, which the profile names: restart it with this version of the profile"
        elif revision and (name, revision) not in loaded:
            digests = ", ".join(sorted(other_digest[:12] for other_name, other_digest in loaded if other_name == name))
            yield f"its {name} is revision {digests}, the profile's is {revision[:12]}: restart it with the right ones"


def _revision(source: Weights | Server) -> str:
    """The revision in the profile; empty if it is unknown here (a branch, or a folder elsewhere)."""
    if isinstance(source, Server):
        return source.revision
    if source.path is not None:
        folder = source.path / source.subfolder
        return digest_folder(folder) if folder.is_dir() else ""
    return source.revision if len(source.revision) == 40 else ""


def device_of(info: ServiceInfo) -> str:
    """What a service computes on, with its driver and the CUDA version of its torch: `cuda:0 (NVIDIA A10G, ...)`."""
    build = f"torch for CUDA {info.runtimes.cuda_build}" if info.runtimes.cuda_build else "torch for CPUs"
    if info.gpu is not None:
        driver = f"driver {info.gpu.driver}" if info.gpu.driver else "driver unknown"
        facts = [info.gpu.name, driver, build]
    else:
        facts = [build]
    if info.runtimes.onnx_provider:
        facts.append(f"onnxruntime on {info.runtimes.onnx_provider.removesuffix('ExecutionProvider')}")
    return f"{info.device} ({', '.join(facts)})"


def onnx_hint(info: ServiceInfo) -> str:
    """Why ONNX models run on the CPU of a service with a GPU; empty if they do not."""
    if not info.device.startswith("cuda") or info.runtimes.onnx_provider in ("", "CUDAExecutionProvider"):
        return ""
    return (
        "ONNX models under test run on its CPU: for the GPU, build its image with onnxruntime-gpu in place of "
        f"onnxruntime, for CUDA {info.runtimes.cuda_build} (docs/how-to/deployment.md)"
    )


def memory(
    infos: Mapping[ServiceName, ServiceInfo], weights: Mapping[ServiceName, Sequence[Weights | Server]]
) -> Iterator[tuple[bool, str]]:
    """Whether the weights of all services on a GPU fit into its memory, in sentences. Activations are not counted.

    A server of the profile on this machine counts towards the GPU that the services share, with its key-value cache.
    """
    sharing: dict[str, list[ServiceName]] = defaultdict(list)
    for name, info in infos.items():
        if info.gpu is not None:
            sharing[info.gpu.uuid].append(name)
        elif info.device.startswith("cuda"):
            yield (
                False,
                f"{name} runs on {info.device}, whose memory is unknown: nvidia-smi does not list that GPU there",
            )
    for names in sharing.values():
        gpu = infos[names[0]].gpu
        assert gpu is not None
        need = sum(gigabytes(weights[name]) for name in names)
        services = " and ".join(names)
        sentence = f"{services}: {need:.1f} GB of weights on {gpu.name} with {gpu.gigabytes:.1f} GB"
        if need > gpu.gigabytes:
            yield False, f"{sentence}; give one of them its own GPU, or choose a smaller profile"
        else:
            yield True, sentence
    yield from _servers_memory(infos, weights, [infos[names[0]].gpu for names in sharing.values()])


def host_memory(infos: Mapping[ServiceName, ServiceInfo], profile: Profile) -> Iterator[tuple[bool, str]]:
    """Whether the container of diffusion_service may hold the networks that take turns on its GPU, in a sentence."""
    instruct, info = profile.diffusion.instruct, infos.get("diffusion_service")
    need = instruct.host_gigabytes if isinstance(instruct, InstructPipeline) and instruct.offload != "none" else 0.0
    if info is None or info.host_gigabytes is None or not info.device.startswith("cuda") or not need:
        return
    need += HOST_GIGABYTES
    sentence = (
        f"diffusion_service keeps up to {need:.1f} GB in the host's memory, and may use {info.host_gigabytes:.1f}"
    )
    fits = need <= info.host_gigabytes
    yield fits, sentence if fits else f"{sentence}: raise its container's limit (DIFFUSION_MEMORY, resources)"


def _servers_memory(
    infos: Mapping[ServiceName, ServiceInfo],
    weights: Mapping[ServiceName, Sequence[Weights | Server]],
    gpus: Sequence[GpuInfo | None],
) -> Iterator[tuple[bool, str]]:
    """Whether each server on this machine fits into memory, together with the services if those share one GPU.

    A service is in `infos` only if its server answers. Then the server is loaded, perhaps on a separate GPU.
    """
    if not any(info.gpu for info in infos.values()):
        return
    needed = sum(gigabytes(weights[name]) for name, info in infos.items() if info.gpu is not None)
    counted = set()
    for name, sources in weights.items():
        for server in sources:
            if not isinstance(server, Server) or urlsplit(server.url).hostname not in LOOPBACK or server.url in counted:
                continue
            counted.add(server.url)
            cache = server.cache.gigabytes if server.cache else 0.0
            sentence = f"{server.model}: {server.gigabytes:.1f} GB of weights, {cache:.1f} GB of key-value cache"
            needed += server.gigabytes + cache
            (gpu, *other_gpus) = gpus
            if other_gpus or gpu is None:
                yield True, sentence
                continue
            sentence = f"{sentence}; {needed:.1f} GB with the services on {gpu.name} with {gpu.gigabytes:.1f} GB"
            if needed <= gpu.gigabytes:
                yield True, sentence
            else:
                yield name in infos, f"{sentence}: it needs a GPU of its own, or a shorter context"
