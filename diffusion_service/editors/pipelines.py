"""Edit an image by an instruction with a pipeline of diffusers, one image at a time.

`PIPELINES` lists the supported classes and how each is called. Weights are safetensors from a folder or from the Hub's
cache; nothing is downloaded, and no code of a repository runs. Images are edited at the pipeline's native area; pixels
that must stay are the source's.

The processor of Qwen-Image-Edit's text encoder for images and text, without its part for videos.

transformers' own needs torchvision for videos, which no pipeline of diffusers sends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import diffusers
import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen2Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from transformers.processing_utils import ProcessorMixin

from diffusion_service.geometry import fit_area, fit_by_stretching, to_model, to_source
from diffusion_service.stable_diffusion import NOT_FINITE
from shared.images import Pixels
from shared.load_progress import reading
from shared.problems import InvalidInput, NotFinite
from shared.profile_instruct import INPAINTING, InstructPipeline, PipelineName
from shared.weights import Weights

FOLDER = "processor"
MULTIPLE = 32  # pixels; every supported pipeline takes sizes in multiples of it
COMPLETE_VERSION = "0.42.1"  # of diffusers, which has all of these classes


@dataclass(frozen=True, slots=True)
class Calling:
    """How a pipeline is called: its argument for guidance, and arguments that are always the same.

    `reference`: the source is passed as a reference image, too, since the pipeline sees only what it repaints.
    `resizes`: it changes sizes, unless it is given the area. `processed`: it has a processor of images and text.
    """

    guidance: str = "guidance_scale"
    always: Mapping[str, Any] = field(default_factory=dict)
    reference: bool = False
    resizes: bool = False
    processed: bool = False


_FULL_STRENGTH = {"strength": 1.0}  # what is repainted starts from noise
_EMPTY_NEGATIVE_PROMPT = {"negative_prompt": " "}  # otherwise Qwen's pipelines have no classifier-free guidance
PIPELINES: Mapping[PipelineName, Calling] = {
    "Flux2KleinPipeline": Calling(),
    "Flux2KleinInpaintPipeline": Calling(always=_FULL_STRENGTH, reference=True),
    "QwenImageEditPlusPipeline": Calling("true_cfg_scale", _EMPTY_NEGATIVE_PROMPT, processed=True),
    "QwenImageEditInpaintPipeline": Calling("true_cfg_scale", _EMPTY_NEGATIVE_PROMPT | _FULL_STRENGTH, processed=True),
    "FluxKontextPipeline": Calling(resizes=True),
    "FluxKontextInpaintPipeline": Calling(always=_FULL_STRENGTH, reference=True, resizes=True),
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

    def __init__(self, profile: InstructPipeline, device: str) -> None:
        """Load the pipeline. Raises ValueError for a class that diffusers lacks, OSError for missing weights."""
        self._calling = PIPELINES[profile.pipeline]
        self.masked = profile.pipeline in INPAINTING
        self._resolution = profile.resolution
        self._pipeline = load_pipeline(profile, device)

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
            with count_passes(self._pipeline.transformer) as passes:
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
            "prompt": item.instruction,
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


def load_pipeline(profile: InstructPipeline, device: str) -> Any:
    """Load a pipeline onto `device`, offloaded and quantised as the profile says. Raises as `PipelineEditor`."""
    weights = profile.weights
    cls = getattr(diffusers, profile.pipeline, None)
    if cls is None:
        raise ValueError(
            f"diffusers {version('diffusers')} has no {profile.pipeline}; install diffusers {COMPLETE_VERSION} or later"
        )
    with reading(weights):
        processor = {"processor": load_processor(weights)} if PIPELINES[profile.pipeline].processed else {}
        try:
            pipeline = cls.from_pretrained(
                weights.location,
                revision=weights.hub_revision,
                variant=weights.variant,
                dtype=getattr(torch, weights.dtype),
                use_safetensors=True,
                local_files_only=True,
                **processor,
            )
        except OSError as error:
            raise OSError(
                f"{weights.id} is not here as safetensors; fetch it with `python -m shared.fetch_weights`: {error}"
            ) from error
        pipeline.set_progress_bar_config(disable=True)
        if profile.quantisation == "float8":
            pipeline.transformer.enable_layerwise_casting(
                storage_dtype=torch.float8_e4m3fn, compute_dtype=getattr(torch, weights.dtype)
            )
        return _place(pipeline, profile, device)


def _place(pipeline: Any, profile: InstructPipeline, device: str) -> Any:
    """The pipeline on its device. Offloading is for accelerators: on a CPU all networks are in its memory anyway."""
    if torch.device(device).type == "cpu" or profile.offload == "none":
        return pipeline.to(device)
    if profile.offload == "model":
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
