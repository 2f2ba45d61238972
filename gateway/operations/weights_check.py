"""Checks that the services have loaded the profile's weights and have enough memory for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from shared import __version__
from shared.profile_unets import MergedLora
from shared.profiles import Profile
from shared.schemas.service import GpuInfo, ServiceInfo, ServiceName
from shared.weights import Server, Weights, digest_folder

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


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
