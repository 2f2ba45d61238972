"""Edit an image by an instruction with a pipeline of diffusers, one image at a time.

`PIPELINES` lists the supported classes and how each is called. Weights are safetensors from a folder or from the Hub's
cache; nothing is downloaded, and no code of a repository runs. Images are edited at the pipeline's native area; pixels
that must stay are the source's.

The processor of Qwen-Image-Edit's text encoder for images and text, without its part for videos.

transformers' own needs torchvision for videos, which no pipeline of diffusers sends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from inspect import signature
from typing import Any, Literal

import diffusers
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen2Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.processing_utils import ProcessorMixin

from diffusion_service.acceleration import OFF, Acceleration
from diffusion_service.geometry import fit_area, fit_by_stretching, to_model, to_source
from diffusion_service.loading import local_file, read_json
from diffusion_service.once import Once
from diffusion_service.stable_diffusion import NOT_FINITE
from shared.media.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.profiles.instruct import INPAINTING, GgufTransformer, InstructPipeline, PipelineName
from shared.profiles.unets import MergedLora
from shared.profiles.weights import Weights
from shared.service.load_progress import reading

logger = logging.getLogger("contrafact.diffusion")
FOLDER = "processor"
MULTIPLE = 32  # pixels; every supported pipeline takes sizes in multiples of it
COMPLETE_VERSION = "0.42.1"  # of diffusers, which has all of these classes
# Bytes that an edit needs beside the weights: a guess for one image of 1024², which nobody has measured on a card.
WORKSPACE = 4 * 10**9
CACHED_PROMPTS = 64  # in host memory; klein's take 8 MB each


@dataclass(frozen=True, slots=True)
class Calling:
    """How a pipeline is called: its argument for guidance, and arguments that are always the same.

    `reference`: the source is passed as a reference image, too, since the pipeline sees only what it repaints.
    `resizes`: it changes sizes, unless it is given the area. `processed`: it has a processor of images and text.
    `embeddings`: its arguments for an encoded prompt, in the order in which `encode_prompt` returns them; empty where
    the encoder reads the source, too. `negative`: the same for the prompt of classifier-free guidance, which is empty.
    `encoding`: arguments of `encode_prompt` that have no default.
    """

    guidance: str = "guidance_scale"
    always: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False
    resizes: bool = False
    processed: bool = False
    embeddings: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()
    encoding: Mapping[str, Any] = field(default_factory=dict)


_KLEIN: Mapping[str, Any] = {"embeddings": ("prompt_embeds",), "negative": ("negative_prompt_embeds",)}
_KONTEXT: Mapping[str, Any] = {
    "resizes": True,
    "embeddings": ("prompt_embeds", "pooled_prompt_embeds"),
    "encoding": {"prompt_2": None},
}
_FULL_STRENGTH = {"strength": 1.0}  # what is repainted starts from noise
_EMPTY_NEGATIVE_PROMPT = {"negative_prompt": " "}  # otherwise Qwen's pipelines have no classifier-free guidance
PIPELINES: Mapping[PipelineName, Calling] = {
    "Flux2KleinPipeline": Calling(**_KLEIN),
    "Flux2KleinInpaintPipeline": Calling(always=_FULL_STRENGTH, reference=True, **_KLEIN),
    "QwenImageEditPlusPipeline": Calling("true_cfg_scale", _EMPTY_NEGATIVE_PROMPT, processed=True),
    "QwenImageEditInpaintPipeline": Calling("true_cfg_scale", _EMPTY_NEGATIVE_PROMPT | _FULL_STRENGTH, processed=True),
    "FluxKontextPipeline": Calling(**_KONTEXT),
    "FluxKontextInpaintPipeline": Calling(always=_FULL_STRENGTH, reference=True, **_KONTEXT),
}


@dataclass(frozen=True, slots=True, eq=False)
class PipelineItem:
    """One image to edit: `source` is height × width × 3; `keep`, if given, is height × width, not 0 where it stays."""

    source: Pixels
    keep: Pixels | None
    instruction: str
    seed: int
    steps: int
    guidance: float

    @property
    def duration_kind(self) -> tuple[int, int]:
        """What decides how long it takes: pixels and steps."""
        return self.source.shape[0] * self.source.shape[1], self.steps


@dataclass(frozen=True, slots=True)
class PipelineEdit:
    """An edited image at the source's size, and its cost in network evaluations."""

    image: Pixels
    evaluations: int


class PipelineEditor:
    """The editor `instruct` with a pipeline of diffusers."""

    def __init__(self, profile: InstructPipeline, device: str, acceleration: Acceleration = OFF) -> None:
        """Load the pipeline; `acceleration` chooses the kernel of attention.

        Raises ValueError for a class that diffusers lacks, OSError for missing weights.
        """
        self._calling = PIPELINES[profile.pipeline]
        self.masked = profile.pipeline in INPAINTING
        self._resolution = profile.resolution
        self._device = torch.device(device)
        self._acceleration = acceleration
        self._pipeline = load_pipeline(profile, device)
        self._prompts = Once[str, tuple[Tensor, ...]](CACHED_PROMPTS)

    @property
    def encodes(self) -> bool:
        """Whether `encode` spares edits their text encoder."""
        return bool(self._calling.embeddings)

    @torch.inference_mode()
    def encode(self, _: object, items: Sequence[PipelineItem]) -> list[bool]:
        """Encode the instructions of a request, so that an offloaded text encoder moves to the device once for all."""
        for item in items:
            self._encoded(item.instruction)
        return [True] * len(items)

    def edit(self, _: object, items: Sequence[PipelineItem]) -> list[PipelineEdit | InvalidInput | NotFinite]:
        """One image per item. Items that are the same object, as in a padded batch, are computed once."""
        results: dict[int, PipelineEdit | InvalidInput | NotFinite] = {}
        for item in items:
            if id(item) not in results:
                results[id(item)] = self._edit(item)
        return [results[id(item)] for item in items]

    @torch.inference_mode()
    def _edit(self, item: PipelineItem) -> PipelineEdit | InvalidInput | NotFinite:
        size = item.source.shape[1], item.source.shape[0]
        try:
            with count_passes(self._pipeline.transformer) as passes, self._acceleration.kernels():
                edited = self._pipeline(**self._arguments(item, size)).images[0]  # height × width × 3, 0 … 1
        except ValueError as error:  # its checks of sizes and texts
            return InvalidInput(f"{type(self._pipeline).__name__} refuses the image or the instruction: {error}")
        if not np.isfinite(edited).all():
            return NotFinite(NOT_FINITE)
        pixels = np.round(edited * 255).astype(np.uint8)
        image = to_source(pixels, fit_by_stretching(size, (pixels.shape[1], pixels.shape[0])))
        if item.keep is not None:  # the autoencoder and the pipeline's area change what must stay, too
            image = np.where(item.keep[..., None] > 0, item.source, image)
        return PipelineEdit(image, len(passes))

    def _arguments(self, item: PipelineItem, size: tuple[int, int]) -> dict[str, Any]:
        calling = self._calling
        geometry = fit_area(*size, self._resolution, MULTIPLE)
        width, height = geometry.padded
        source = Image.fromarray(to_model(item.source, geometry))
        arguments = {
            **calling.always,
            "image": source,
            **self._prompt_arguments(item),
            "width": width,
            "height": height,
            "num_inference_steps": item.steps,
            calling.guidance: item.guidance,
            "generator": torch.Generator("cpu").manual_seed(item.seed),
            "output_type": "np",
        }
        if calling.resizes:
            arguments |= {"max_area": width * height, "_auto_resize": False}
        if calling.reference:
            arguments["image_reference"] = source
        if item.keep is not None:
            repainted = np.where(to_model(item.keep, geometry) > 0, np.uint8(0), np.uint8(255))
            arguments["mask_image"] = Image.fromarray(repainted)
        if item.guidance <= 1:
            arguments.pop("negative_prompt", None)
        return arguments

    def _prompt_arguments(self, item: PipelineItem) -> dict[str, Any]:
        """The instruction, encoded if the pipeline takes it so."""
        calling = self._calling
        if not calling.embeddings:
            return {"prompt": item.instruction}
        arguments = dict(zip(calling.embeddings, self._encoded(item.instruction), strict=True))
        if item.guidance > 1:
            arguments |= zip(calling.negative, self._encoded("") if calling.negative else (), strict=True)
        return {name: embedding.to(self._device) for name, embedding in arguments.items()}

    def _encoded(self, text: str) -> tuple[Tensor, ...]:
        """A text's embeddings on the CPU, encoded unless it is among the last ones."""

        def encode() -> tuple[Tensor, ...]:
            encoded = self._pipeline.encode_prompt(prompt=text, device=self._device, **self._calling.encoding)
            return tuple(embedding.cpu() for embedding in encoded[: len(self._calling.embeddings)])

        return self._prompts.get(text, encode)


def load_pipeline(profile: InstructPipeline, device: str) -> Any:
    """Load a pipeline onto `device`, offloaded and quantised as the profile says. Raises as `PipelineEditor`."""
    weights = profile.weights
    cls = getattr(diffusers, profile.pipeline, None)
    if cls is None:
        raise ValueError(
            f"diffusers {version('diffusers')} has no {profile.pipeline}; install diffusers {COMPLETE_VERSION} or later"
        )
    with reading(weights):
        parts = {"processor": load_processor(weights)} if PIPELINES[profile.pipeline].processed else {}
        if profile.transformer is not None:
            parts["transformer"] = _load_gguf(profile.transformer, weights)
        try:
            pipeline = cls.from_pretrained(
                weights.location,
                revision=weights.hub_revision,
                variant=weights.variant,
                dtype=getattr(torch, weights.dtype),
                use_safetensors=True,
                local_files_only=True,
                **parts,
            )
        except OSError as error:
            raise OSError(
                f"{weights.id} is not here as safetensors; fetch it with "
                f"`python -m shared.profiles.fetch_weights`: {error}"
            ) from error
        pipeline.set_progress_bar_config(disable=True)
        pipeline.scheduler = _scheduler(pipeline.scheduler, profile.scheduler_options)
        for lora in profile.loras:
            _merge(lora, pipeline)
        if profile.quantisation == "float8":
            pipeline.transformer.enable_layerwise_casting(
                storage_dtype=torch.float8_e4m3fn, compute_dtype=getattr(torch, weights.dtype)
            )
        return _place(pipeline, profile, device)


def _load_gguf(file: GgufTransformer, weights: Weights) -> Any:
    """The transformer of a GGUF file, with the configuration of the pipeline's own."""
    _, name = read_json(weights, "model_index.json")["transformer"]
    dtype = getattr(torch, file.dtype)
    with reading(file):
        return getattr(diffusers, name).from_single_file(
            str(local_file(file, file.file)),
            config=weights.location,
            subfolder="transformer",
            revision=weights.hub_revision,
            quantization_config=diffusers.GGUFQuantizationConfig(compute_dtype=dtype),
            torch_dtype=dtype,
            local_files_only=True,
        )


def _scheduler(scheduler: Any, options: Mapping[str, Any]) -> Any:
    """The scheduler with options in place of those of its weights. Raises ValueError for one that it does not have."""
    kind = type(scheduler)
    available = [*signature(kind.__init__).parameters][1:]
    if unknown := sorted(set(options) - set(available)):
        raise ValueError(f"{kind.__name__} has no option {', '.join(unknown)}; it has {', '.join(available)}")
    return kind.from_config({**scheduler.config, **options})


def _merge(lora: MergedLora, pipeline: Any) -> None:
    """Add a LoRA to the transformer's parameters. Raises ValueError for one of another network, OSError if missing."""
    with reading(lora):
        state = pipeline.lora_state_dict(
            lora.location,
            weight_name=lora.file,
            subfolder=lora.subfolder or None,
            revision=lora.hub_revision,
            use_safetensors=True,
            local_files_only=True,
        )
        modules = {f"transformer.{name}" for name, _ in pipeline.transformer.named_modules()}
        unknown = sorted({key.partition(".lora_")[0] for key in state} - modules)
        if unknown or not state:
            reason = f"it has no {unknown[0]}" if unknown else "the file holds nothing"
            raise ValueError(f"{lora.file} of {lora.id} is no LoRA of the pipeline's transformer: {reason}")
        try:
            pipeline.load_lora_weights(state)
        except RuntimeError as error:
            raise ValueError(f"the LoRA {lora.id} does not fit the pipeline's transformer: {error}") from error
        pipeline.fuse_lora(components=["transformer"], lora_scale=lora.scale)
        pipeline.unload_lora_weights()


def choose_offload(free: int, networks: Sequence[int], *, quantised: bool) -> Literal["none", "model", "sequential"]:
    """What `offload = "auto"` means for a device with `free` bytes and networks of these bytes.

    The fastest choice that leaves `WORKSPACE` for computing. Quantised weights cannot be offloaded layer by layer.
    """
    room = free - WORKSPACE
    if sum(networks) <= room:
        return "none"
    return "model" if max(networks) <= room or quantised else "sequential"


def network_bytes(pipeline: Any) -> dict[str, int]:
    """Bytes of the parameters and buffers of each network of a pipeline, by the component's name."""
    return {
        name: sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
        for name, network in pipeline.components.items()
        if isinstance(network, nn.Module)
    }


def _place(pipeline: Any, profile: InstructPipeline, device: str) -> Any:
    """The pipeline on its device. Offloading is for accelerators: on a CPU all networks are in its memory anyway."""
    accelerator = torch.device(device)
    offload = profile.offload
    if accelerator.type == "cpu":
        return pipeline.to(device)
    if offload == "auto":
        sizes = network_bytes(pipeline)
        torch.cuda.empty_cache()  # what earlier networks only reserved is free
        free, _ = torch.cuda.mem_get_info(accelerator)
        offload = choose_offload(free, [*sizes.values()], quantised=profile.quantisation != "none")
        logger.info(
            "%s: offload %s, with %.1f GB free for %s", profile.pipeline, offload, free / 1e9,
            ", ".join(f"{name} {size / 1e9:.1f} GB" for name, size in sizes.items()),
        )  # fmt: skip
    if offload == "none":
        return pipeline.to(device)
    if offload == "model":
        pipeline.enable_model_cpu_offload(device=device)
    else:
        pipeline.enable_sequential_cpu_offload(device=device)
    return pipeline


@contextmanager
def count_passes(network: nn.Module) -> Iterator[list[int]]:
    """A list that gets an entry for each forward pass of a network, and for each row of its batch."""
    passes: list[int] = []

    def count(_: nn.Module, __: object, output: Sequence[Tensor]) -> None:
        passes.extend(range(len(output[0])))

    handle = network.register_forward_hook(count)
    try:
        yield passes
    finally:
        handle.remove()


class ImageTextProcessor(Qwen2VLProcessor):  # type: ignore[misc]  # transformers has no types
    """`Qwen2VLProcessor` for images and text."""

    def __init__(self, image_processor: Any, tokenizer: Any, chat_template: str | None = None) -> None:
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def load_processor(weights: Weights) -> ImageTextProcessor:
    """The processor in a pipeline's folder, with Pillow's resizing. Raises OSError if files are missing."""
    parts = [
        cls.from_pretrained(weights.location, subfolder=FOLDER, revision=weights.hub_revision, local_files_only=True)
        for cls in (Qwen2VLImageProcessorPil, Qwen2Tokenizer)
    ]
    return ImageTextProcessor(*parts)
