"""Train the tiny generator's UNet and ControlNet together: `python -m research.train.diffusion --minutes 95`.

Needs the autoencoder (`research.train.autoencoder`) in `tinyworld/weights/diffusion`, which serves both domains, and
the domain's text encoder (`research.train.text_encoder`); both stay frozen. v-prediction with zero terminal SNR on
latents of generator scenes; captions are sampled anew for every step. The control is as in an editor: edges of the
image itself or of a sibling (`dataset.py`), all of them, the structural ones, the object's, or none. The loss weighs
object and companion more than the background, which is easier. CPU or GPU; an interrupted run resumes from
`runs/diffusion/checkpoint.pt`.
`--start FOLDER` starts from a published generator, `--domain roads` trains on driving scenes. `--controls canny
segmentation` trains two ControlNets with the UNet: a third of the steps uses edges, a third classes in colours, a third
both, with added residuals as in an editor with several controls.
`python -m research.train.publish_diffusion` writes its averaged weights in Stable Diffusion's layout.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, DDPMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModel, CLIPTokenizer

from research.datasets.generator_pictures import CONTROL_KINDS, ControlKind, Material, material
from research.networks.group_norm import speed_up_group_norm
from research.networks.half_precision import autocast
from research.system.folders import RUNS, weights_of
from research.train.autoencoder import LATENT_CHANNELS, WEIGHTS, to_model
from research.train.loop import Recipe, device, recipe_record, run_name, train
from tinyworld.domain.names import add_domain

SCHEDULE = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "timestep_spacing": "trailing",
    "clip_sample": False,
}
CAPTION_DROPOUT = 0.1
WIDTHS = (64, 128, 160)  # channels of each level
CONDITIONING_WIDTHS = (16, 32, 64)  # of the layers by which a ControlNet takes its image in
OBJECT_WEIGHT = 1.5  # added to the loss where object or companion are


FOLDERS: dict[str, str] = {"canny": "controlnet", "segmentation": "controlnet-segmentation"}  # beside the UNet


class Generator(nn.Module):
    """UNet and ControlNets as one model to train."""

    def __init__(
        self, text_width: int, widths: tuple[int, ...] = WIDTHS, controls: Sequence[ControlKind] = ("canny",)
    ) -> None:
        super().__init__()
        self.unet = UNet2DConditionModel(
            sample_size=32,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            block_out_channels=widths,
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=text_width,
            attention_head_dim=4,
        )
        self.controlnets = nn.ModuleDict({kind: self._beginner() for kind in controls})
        self.unet.set_attn_processor(AttnProcessor())  # scaled_dot_product_attention's backward is slow on CPU

    def forward(self, noisy: Tensor, time: Tensor, text: Tensor, controls: Mapping[str, Tensor]) -> Tensor:
        """Velocity (n x 5 x 32 x 32) for noisy latents, time steps (n), text states (n x tokens x width).

        `controls` are images (n x 3 x 128 x 128) of one kind or several, whose residuals add up.
        """
        residuals = [
            self.controlnets[kind](noisy, time, text, controlnet_cond=image, return_dict=False)
            for kind, image in controls.items()
        ]
        velocity: Tensor = self.unet(
            noisy,
            time,
            text,
            down_block_additional_residuals=[
                torch.stack(of).sum(0) for of in zip(*(d for d, _ in residuals), strict=True)
            ],
            mid_block_additional_residual=torch.stack([middle for _, middle in residuals]).sum(0),
        ).sample
        return velocity

    def take_published(self, folder: Path) -> None:
        """Begin with the UNet of a published generator, and with its ControlNets as far as it has them."""
        self.unet.load_state_dict(UNet2DConditionModel.from_pretrained(folder / "unet").float().state_dict())
        for kind, network in self.controlnets.items():
            if (folder_of_kind := folder / FOLDERS[kind]).exists():
                network.load_state_dict(ControlNetModel.from_pretrained(folder_of_kind).float().state_dict())

    def _beginner(self) -> ControlNetModel:
        """An untrained ControlNet whose joints are open.

        Zero-initialised ones protect a trained UNet; with one that learns, too, they only delay the control.
        """
        network = ControlNetModel.from_unet(self.unet, conditioning_embedding_out_channels=CONDITIONING_WIDTHS)
        network.set_attn_processor(AttnProcessor())
        embedding = network.controlnet_cond_embedding.conv_out
        for joint in (*network.controlnet_down_blocks, network.controlnet_mid_block, embedding):
            nn.init.normal_(joint.weight, std=0.25 * (joint.weight[0].numel() ** -0.5))
        return network


class Examples:
    """Latents, control images and captions of generator scenes, drawn by step; the domain's text encoder."""

    def __init__(
        self,
        data: Material,
        batch: int,
        on: torch.device,
        controls: Sequence[ControlKind] = ("canny",),
        domain: str = "objects",
    ) -> None:
        self.data, self.batch, self.on, self.domain = data, batch, on, domain
        self.shown = [(kind,) for kind in controls] + ([tuple(controls)] if len(controls) > 1 else [])
        self.latents = Latents(data, on)
        texts = weights_of(domain) / "diffusion"
        self.tokenizer = CLIPTokenizer.from_pretrained(texts / "tokenizer")
        self.text_encoder = CLIPTextModel.from_pretrained(texts / "text_encoder", dtype=torch.float32).to(on).eval()
        self.noise = DDPMScheduler(**SCHEDULE)

    def loss(self, model: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((0xD1F, step))
        rows = random.integers(self.data.count, size=self.batch)
        clean = self.latents[rows]
        time = torch.from_numpy(time_steps(self.batch, random)).to(self.on)
        noise = torch.randn_like(clean)
        noisy, target = self.noise.add_noise(clean, noise, time), self.noise.get_velocity(clean, noise, time)
        text = self.text(rows, random)
        controls = {kind: self.control(kind, rows, random) for kind in self.shown[step % len(self.shown)]}
        with autocast(self.on):
            output = model(noisy.contiguous(memory_format=torch.channels_last), time, text, controls)
        weight = self.weight(rows)
        loss: Tensor = (weight * (output.float() - target).square()).sum() / (LATENT_CHANNELS * weight.sum())
        return loss

    def text(self, rows: NDArray[np.int64], random: np.random.Generator) -> Tensor:
        seeds, with_caption = random.integers(2**31, size=len(rows)), random.random(len(rows)) >= CAPTION_DROPOUT
        examples = zip(rows.tolist(), seeds.tolist(), with_caption, strict=True)
        texts = [self.data.caption(row, seed) if has_caption else "" for row, seed, has_caption in examples]
        return text_states(self.tokenizer, self.text_encoder, texts)

    def control(self, kind: ControlKind, rows: NDArray[np.int64], random: np.random.Generator) -> Tensor:
        return control_tensor(np.stack([self.data.control(kind, row, random) for row in rows.tolist()]), self.on)

    def weight(self, rows: NDArray[np.int64]) -> Tensor:
        weighty = np.stack([self.data.weighty(row) for row in rows.tolist()]).astype(np.float32)
        masks = torch.from_numpy(weighty).to(self.on)
        return 1 + OBJECT_WEIGHT * functional.avg_pool2d(masks[:, None], 4)


def time_steps(count: int, random: np.random.Generator) -> NDArray[np.int64]:
    """One time step from each of `count` equal stretches, nine in ten of them beyond 300.

    Below, a tenth of the work suffices: what is left there is local and soon learnt; structure is decided above.
    """
    strata = (np.arange(count) + random.random(count)) / count
    return np.where(strata < 0.1, strata * 3000, 300 + (strata - 0.1) / 0.9 * 700).astype(np.int64)


def control_tensor(edges: NDArray[np.uint8], on: torch.device) -> Tensor:
    """Edge images (n x 128 x 128, 0 and 1) or colours (n x 128 x 128 x 3) as a ControlNet sees them (n x 3 x ...)."""
    if edges.ndim == 4:
        tensor = torch.from_numpy(edges).to(on).float().div(255).permute(0, 3, 1, 2)
    else:
        tensor = torch.from_numpy(edges).to(on).float()[:, None].expand(-1, 3, -1, -1)
    return tensor.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def text_states(tokenizer: CLIPTokenizer, encoder: CLIPTextModel, texts: list[str]) -> Tensor:
    """Hidden states (n x tokens x width) of texts padded to the tokenizer's full length, as pipelines pad them."""
    ids = tokenizer(
        texts, padding="max_length", max_length=tokenizer.model_max_length, truncation=True, return_tensors="pt"
    ).input_ids
    states: Tensor = encoder(ids.to(encoder.device)).last_hidden_state
    return states


class NumberedImages(Protocol):
    """Images (128 x 128 x 3) by number, 0 to `count` - 1."""

    @property
    def count(self) -> int: ...
    @property
    def image(self) -> Callable[[int], NDArray[np.uint8]]: ...


class Latents:
    """Scaled latents (n x 5 x 32 x 32) of images, encoded by the autoencoder in `WEIGHTS` on first use."""

    def __init__(self, data: NumberedImages, on: torch.device) -> None:
        self.model = AutoencoderKL.from_pretrained(WEIGHTS / "vae").float().to(on, memory_format=torch.channels_last)
        self.data, self.on = data, on
        self.encoded = np.zeros(data.count, np.bool_)
        self.stored = np.zeros((data.count, LATENT_CHANNELS, 32, 32), np.float32)

    @torch.no_grad()
    def __getitem__(self, rows: NDArray[np.int64]) -> Tensor:
        new = np.unique(rows[~self.encoded[rows]])
        if len(new):
            with autocast(self.on):
                images = np.stack([self.data.image(row) for row in new.tolist()])
                latents = self.model.encode(to_model(images, self.on)).latent_dist.mean
            self.stored[new] = (latents.float() * self.model.config.scaling_factor).cpu().numpy()
            self.encoded[new] = True
        return torch.from_numpy(self.stored[rows]).to(self.on)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=95)
    parser.add_argument("--pictures", type=int, default=16000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", help="folder under runs/, else the domain's; `start.pt` in it is where to start")
    add_domain(parser)
    parser.add_argument("--controls", nargs="+", choices=CONTROL_KINDS, default=["canny"])
    parser.add_argument("--widths", nargs=3, type=int, default=WIDTHS, help="channels of each level")
    parser.add_argument("--start", type=Path, help="published generator to go on from, as tinyworld/weights/diffusion")
    args = parser.parse_args()
    run = args.run or run_name("diffusion", args.domain, None)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    on = device()
    examples = Examples(material(args.domain, args.pictures), args.batch, on, args.controls, args.domain)
    model = Generator(examples.text_encoder.config.hidden_size, tuple(args.widths), args.controls)
    if args.start is not None:
        model.take_published(args.start)
    if (start := RUNS / run / "start.pt").exists():
        model.load_state_dict(torch.load(start, weights_only=True))
    model.to(device=on, memory_format=torch.channels_last)  # type: ignore[call-overload]
    speed_up_group_norm(model)
    recipe = Recipe(run, args.minutes * 60, args.batch, 5e-4, weight_decay=0.01, checkpoint_every=150)
    progress = train(model, examples.loss, recipe)
    print(recipe_record(recipe, progress))


if __name__ == "__main__":
    main()
