"""Tables of a profile for UNets: a whole one in place of another, and LoRAs that change one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.profiles.weights import Weights

SafetensorsFile = Annotated[str, Field(pattern=r"^[^*?\[\]]+\.safetensors$")]


class Lora(Weights):
    """`[diffusion.few_step.lora]`: a LoRA of the base's UNet, in diffusers' layout or kohya's; one safetensors file.

    It is merged into a second copy of the UNet on loading: `gigabytes` are those of the copy. `scale` multiplies it.
    """

    file: SafetensorsFile
    scale: Annotated[float, Field(gt=0, le=2)] = 1.0


class MergedLora(Lora):
    """One of `[[diffusion.loras]]`: merged into the UNet, so it takes no memory; `gigabytes` are those of the file."""


class InputLayer(Weights):
    """`[diffusion.instruct.conv_in]`: a UNet's first layer for more input channels; one safetensors file."""

    file: SafetensorsFile = "conv_in.safetensors"


class WholeUNet(Weights):
    """`[diffusion.unet]`, `[diffusion.few_step.unet]`: a UNet of the base's layout, a folder in the Hub's layout.

    Or one safetensors `file`, with keys as diffusers writes them. It comes without a configuration: the base's applies.
    """

    file: SafetensorsFile | None = None
