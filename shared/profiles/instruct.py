"""The table `[diffusion.instruct]` of a profile: the editor that carries out instructions, one table per engine."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from shared.profiles.unets import InputLayer, MergedLora, WholeUNet
from shared.profiles.weights import Section, Server, Weights
from shared.schemas.diffusion import EditedRegion
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_digest

PipelineName = Literal[
    "Flux2KleinPipeline",
    "Flux2KleinInpaintPipeline",
    "QwenImageEditPlusPipeline",
    "QwenImageEditInpaintPipeline",
    "FluxKontextPipeline",
    "FluxKontextInpaintPipeline",
]
INPAINTING: frozenset[PipelineName] = frozenset(
    {"Flux2KleinInpaintPipeline", "QwenImageEditInpaintPipeline", "FluxKontextInpaintPipeline"}
)
# none: all on the device. model: only the network that computes. sequential: only the layer that computes.
# auto: the first of these that the device's free memory allows when the weights are loaded.
Offload = Literal["none", "model", "sequential", "auto"]
# float8: the transformer's weights are kept in 8 bits (E4M3), and computed in `dtype`.
Quantisation = Literal["none", "float8"]
FormField = Literal["seed", "steps", "guidance"]
_FIELDS: dict[FormField, str] = {"seed": "seed", "steps": "num_inference_steps", "guidance": "guidance_scale"}
_OPTIONS = {"response_format": "b64_json", "output_format": "png"}  # SGLang's own default is JPEG


class InstructPix2Pix(Section):
    """`engine = "instruct-pix2pix"`: a UNet with the source's latents as further input channels, in process.

    One of three: `unet` shares all other networks with the base; `conv_in` is a first layer for a copy of the few-step
    UNet (without one, the base's); `weights` is a whole pipeline in the Hub's layout. `loras` are merged into the UNet.
    `scheduler` and `scheduler_options` override those of the weights.
    """

    engine: Literal["instruct-pix2pix"]
    unet: WholeUNet | None = None
    conv_in: InputLayer | None = None
    weights: Weights | None = None
    loras: list[MergedLora] = Field(default_factory=list)
    scheduler: str | None = None
    scheduler_options: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.unet, self.conv_in, self.weights)) != 1:
            raise ValueError(
                "instruct-pix2pix needs one of `unet` (beside the base), `conv_in` (a first layer for the few-step "
                "UNet, or else the base's) and `weights` (a whole pipeline)"
            )
        return self

    @property
    def sources(self) -> list[Weights | Server]:
        """What it loads."""
        return [source for source in (self.unet, self.conv_in, self.weights, *self.loras) if source is not None]

    @property
    def regions(self) -> tuple[EditedRegion, ...]:
        """The regions that it can restrict itself to."""
        return ("all",)

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`."""
        main = self.unet or self.conv_in or self.weights
        assert main is not None
        files = [f"{lora.file} {lora.scale}" for lora in self.loras]
        file = main.file or "" if isinstance(main, WholeUNet | InputLayer) else ""
        options = json.dumps(self.scheduler_options, sort_keys=True)
        loras = [lora.info("instruct lora") for lora in self.loras]
        return [main.info("instruct"), *loras, _settings(self.scheduler or "", options, file, *files)]


class OneStep(Section):
    """`engine = "one-step"`: a UNet that sees the source in place of noise and predicts its change, in process.

    After pix2pix-turbo (arXiv 2403.12036): the UNet is a copy of the few-step UNet (without one, the base's) with
    `loras` merged into it. It gets the source's latents without noise, the instruction, and always the same `time`, a
    time step of the schedule. Its output is added to the source's latents, so what it does not change stays as it is.
    One network evaluation per image, without guidance; the seed changes nothing.
    """

    engine: Literal["one-step"]
    loras: Annotated[list[MergedLora], Field(min_length=1)]
    time: Annotated[int, Field(ge=0)]

    @property
    def sources(self) -> list[Weights | Server]:
        """What it loads."""
        return list(self.loras)

    @property
    def regions(self) -> tuple[EditedRegion, ...]:
        """The regions that it can restrict itself to."""
        return ("all",)

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`."""
        loras = [lora.info("instruct lora") for lora in self.loras]
        files = [f"{lora.file} {lora.scale}" for lora in self.loras]
        return [*loras, _settings(self.engine, str(self.time), *files)]


class GgufTransformer(Weights):
    """`[diffusion.instruct.transformer]`: the pipeline's transformer, quantised, in one GGUF `file`."""

    file: Annotated[str, Field(pattern=r"^[^*?\[\]]+\.gguf$")]


class InstructPipeline(Section):
    """`engine = "pipeline"`: a pipeline of diffusers, by the name of its class, in process.

    `resolution`: images are edited at about its square in pixels. The pipelines named Inpaint edit the region
    `background` only, all others the whole image. `gigabytes` of `weights` is what the device must hold: with `offload`
    that of the largest network, with `quantisation` that of the smaller transformer. `host_gigabytes` is what the host
    keeps with `offload`; "auto" keeps more on the device where it has room. `loras` are merged into the transformer in
    their order, and `scheduler_options` override the configuration of the weights' scheduler: so weights distilled to
    few steps are used. `transformer` replaces that of `weights`, whose `gigabytes` are then those of the rest.
    """

    engine: Literal["pipeline"]
    pipeline: PipelineName
    weights: Weights
    resolution: Annotated[int, Field(ge=64, le=4096)] = 1024
    offload: Offload = "none"
    host_gigabytes: Annotated[float, Field(ge=0)] = 0.0
    quantisation: Quantisation = "none"
    transformer: GgufTransformer | None = None
    loras: list[MergedLora] = Field(default_factory=list)
    scheduler_options: dict[str, JsonValue] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        if self.transformer is not None and (self.quantisation != "none" or self.loras):
            raise ValueError("a GGUF `transformer` is quantised already, and takes no `quantisation` and no `loras`")
        if self.offload == "sequential" and self.quantisation != "none":
            raise ValueError('`quantisation` does not work with sequential `offload`; use `offload` = "model"')
        return self

    @property
    def sources(self) -> list[Weights | Server]:
        """What it loads."""
        return [self.weights, *([self.transformer] if self.transformer else []), *self.loras]

    @property
    def regions(self) -> tuple[EditedRegion, ...]:
        """The regions that it can restrict itself to."""
        return ("background",) if self.pipeline in INPAINTING else ("all",)

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`; where weights are offloaded to changes no image."""
        parts = [lora.info("instruct lora") for lora in self.loras]
        changes = [f"{lora.file} {lora.scale}" for lora in self.loras]
        if self.transformer is not None:
            parts.append(self.transformer.info("instruct transformer"))
            changes.append(self.transformer.file)
        if self.scheduler_options:
            changes.append(json.dumps(self.scheduler_options, sort_keys=True))
        settings = _settings(self.pipeline, str(self.resolution), self.quantisation, *changes)
        return [self.weights.info("instruct"), *parts, settings]


class InstructServer(Section):
    """`engine = "server"`: a server with OpenAI's `/images/edits` (vLLM-Omni, SGLang and others).

    `fields` are the form fields that carry seed, steps and guidance (default: `seed`, `num_inference_steps` and
    `guidance_scale`); what is not named is not sent. `options` are further form fields (default: `response_format` is
    `b64_json`, `output_format` is `png`). `resolution`: images are sent at about its square in pixels; without it as
    they are, and some servers (vLLM-Omni) edit at the size of what they get. Servers batch as they like, so equal
    requests may get other pixels.
    """

    engine: Literal["server"]
    server: Server
    fields: Annotated[dict[FormField, str], Field(default_factory=lambda: dict(_FIELDS))]
    options: Annotated[dict[str, str | int | float | bool], Field(default_factory=lambda: dict(_OPTIONS))]
    resolution: Annotated[int, Field(ge=64, le=4096)] | None = None

    @property
    def sources(self) -> list[Weights | Server]:
        """What it asks."""
        return [self.server]

    @property
    def regions(self) -> tuple[EditedRegion, ...]:
        """The regions that it can restrict itself to."""
        return ("all", "background")

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`."""
        fields, options = (json.dumps(table, sort_keys=True) for table in (self.fields, self.options))
        return [self.server.info("instruct"), _settings(fields, options, str(self.resolution or ""))]


Instruct = Annotated[InstructPix2Pix | OneStep | InstructPipeline | InstructServer, Field(discriminator="engine")]


def _settings(*values: str) -> WeightsInfo:
    """The entry for settings that images depend on, by their digest."""
    use = derive_digest(*values).hex()
    return WeightsInfo(role="instruct settings", id="[diffusion.instruct]", revision=use, dtype="", licence="")
