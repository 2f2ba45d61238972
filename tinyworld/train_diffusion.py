"""Train the tiny generator's UNet and ControlNet together: `python -m tinyworld.train_diffusion --minutes 95`.

Needs the autoencoder (`train_autoencoder.py`) and the text encoder (`train_text_encoder.py`) in
`tinyworld/weights/diffusion`; both stay as they are. v-prediction with zero terminal SNR on
latents of generator scenes; captions are written afresh for every step. The control is what an editor
will have: edges of the picture itself or of a sibling (`dataset.py`), all of them, the structural ones,
the object's, or none. Loss on object and companion counts more than on the place, which is the easier
part. CPU or GPU; stop and start again at will, the run goes on from `runs/diffusion/checkpoint.pt`.
`--start FOLDER` begins with a published generator, `--districts objects roads` mixes both. `--control segmentation
--unet RUN` trains a second ControlNet, on classes in colours, to the UNet of a run of this command, which stays as
it is.
`python -m tinyworld.publish_diffusion` writes its averaged weights in Stable Diffusion's layout.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, ControlNetModel, DDPMScheduler, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from transformers import CLIPTextModel, CLIPTokenizer

from tinyworld.generator_material import Material, material
from tinyworld.group_norm import quicken
from tinyworld.train_autoencoder import LATENT_CHANNELS, WEIGHTS, to_model
from tinyworld.training_loop import DISTRICTS, RUNS, Recipe, device, recipe_record, train

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
WIDEST = 160  # channels of the lowest level
OBJECT_WEIGHT = 1.5  # added to the loss where object or companion are


class Generator(nn.Module):
    """UNet and ControlNet as one model to train."""

    def __init__(self, text_width: int) -> None:
        super().__init__()
        self.unet = UNet2DConditionModel(
            sample_size=32,
            in_channels=LATENT_CHANNELS,
            out_channels=LATENT_CHANNELS,
            block_out_channels=(64, 128, WIDEST),
            layers_per_block=1,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=text_width,
            attention_head_dim=4,
        )
        self.controlnet = ControlNetModel.from_unet(self.unet, conditioning_embedding_out_channels=(16, 32, 64))
        self._open_control()
        for part in (self.unet, self.controlnet):
            part.set_attn_processor(AttnProcessor())  # scaled_dot_product_attention's backward is slow on CPU

    def forward(self, noisy: Tensor, time: Tensor, text: Tensor, control: Tensor) -> Tensor:
        """Velocity (n x 5 x 32 x 32) for noisy latents, time steps (n), text states (n x tokens x width), edges."""
        down, middle = self.controlnet(noisy, time, text, controlnet_cond=control, return_dict=False)
        velocity: Tensor = self.unet(
            noisy, time, text, down_block_additional_residuals=down, mid_block_additional_residual=middle
        ).sample
        return velocity

    def take_published(self, folder: Path) -> None:
        """Begin with the UNet and the ControlNet of a published generator."""
        self.unet.load_state_dict(UNet2DConditionModel.from_pretrained(folder / "unet").float().state_dict())
        self.controlnet.load_state_dict(ControlNetModel.from_pretrained(folder / "controlnet").float().state_dict())

    def keep_unet(self, state: dict[str, Tensor]) -> None:
        """Take the UNet of a trained generator's `state`, train it no further, and begin a new ControlNet from it."""
        unet = {name.removeprefix("unet."): tensor for name, tensor in state.items() if name.startswith("unet.")}
        self.unet.load_state_dict(unet)
        self.controlnet = ControlNetModel.from_unet(self.unet, conditioning_embedding_out_channels=(16, 32, 64))
        self.controlnet.set_attn_processor(AttnProcessor())
        self.unet.requires_grad_(False)

    def _open_control(self) -> None:
        """Zero-initialised joints protect a trained UNet; with an untrained one they only delay the control."""
        embedding = self.controlnet.controlnet_cond_embedding.conv_out
        for joint in (*self.controlnet.controlnet_down_blocks, self.controlnet.controlnet_mid_block, embedding):
            nn.init.normal_(joint.weight, std=0.25 * (joint.weight[0].numel() ** -0.5))


class Examples:
    """Latents, control images and captions of generator scenes, drawn by step."""

    def __init__(self, data: Material, batch: int, on: torch.device) -> None:
        self.data, self.batch, self.on = data, batch, on
        self.latents = Latents(data, on)
        self.tokenizer = CLIPTokenizer.from_pretrained(WEIGHTS / "tokenizer")
        self.text_encoder = CLIPTextModel.from_pretrained(WEIGHTS / "text_encoder").float().to(on).eval()
        self.noise = DDPMScheduler(**SCHEDULE)

    def loss(self, model: nn.Module, step: int) -> Tensor:
        random = np.random.default_rng((0xD1F, step))
        rows = random.integers(self.data.count, size=self.batch)
        clean = self.latents[rows]
        time = torch.from_numpy(time_steps(self.batch, random)).to(self.on)
        noise = torch.randn_like(clean)
        noisy, target = self.noise.add_noise(clean, noise, time), self.noise.get_velocity(clean, noise, time)
        text, control = self.text(rows, random), self.control(rows, random)
        with torch.autocast(self.on.type, torch.bfloat16):
            output = model(noisy.contiguous(memory_format=torch.channels_last), time, text, control)
        weight = self.weight(rows)
        loss: Tensor = (weight * (output.float() - target).square()).sum() / (LATENT_CHANNELS * weight.sum())
        return loss

    def text(self, rows: NDArray[np.int64], random: np.random.Generator) -> Tensor:
        seeds, kept = random.integers(2**31, size=len(rows)), random.random(len(rows)) >= CAPTION_DROPOUT
        drawn = zip(rows.tolist(), seeds.tolist(), kept, strict=True)
        texts = [self.data.caption(row, seed) if k else "" for row, seed, k in drawn]
        return text_states(self.tokenizer, self.text_encoder, texts)

    def control(self, rows: NDArray[np.int64], random: np.random.Generator) -> Tensor:
        return control_tensor(np.stack([self.data.control(row, random) for row in rows.tolist()]), self.on)

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


class Latents:
    """Scaled latents (n x 5 x 32 x 32) of pictures, encoded by the autoencoder in `WEIGHTS` when first asked for."""

    def __init__(self, data: Material, on: torch.device) -> None:
        self.model = AutoencoderKL.from_pretrained(WEIGHTS / "vae").float().to(on, memory_format=torch.channels_last)
        self.data, self.on = data, on
        self.known = np.zeros(data.count, np.bool_)
        self.stored = np.zeros((data.count, LATENT_CHANNELS, 32, 32), np.float32)

    @torch.no_grad()
    def __getitem__(self, rows: NDArray[np.int64]) -> Tensor:
        new = np.unique(rows[~self.known[rows]])
        if len(new):
            with torch.autocast(self.on.type, torch.bfloat16):
                images = np.stack([self.data.image(row) for row in new.tolist()])
                found = self.model.encode(to_model(images, self.on)).latent_dist.mean
            self.stored[new] = (found.float() * self.model.config.scaling_factor).cpu().numpy()
            self.known[new] = True
        return torch.from_numpy(self.stored[rows]).to(self.on)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=95)
    parser.add_argument("--pictures", type=int, default=16000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--run", default="diffusion", help="folder under runs/; `start.pt` in it is where to start")
    parser.add_argument("--districts", nargs="+", choices=DISTRICTS, default=["objects"])
    parser.add_argument("--control", choices=("canny", "segmentation"), default="canny")
    parser.add_argument("--start", type=Path, help="published generator to go on from, as tinyworld/weights/diffusion")
    parser.add_argument("--unet", help="run whose UNet stays as it is; a ControlNet is trained to it")
    args = parser.parse_args()
    if args.control == "segmentation" and (args.unet is None or args.run == "diffusion"):
        parser.error("say whose UNet the ControlNet is for (--unet RUN), and another --run for its checkpoint")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    on = device()
    examples = Examples(material(args.districts, args.pictures, args.control), args.batch, on)
    model = Generator(examples.text_encoder.config.hidden_size)
    if args.start is not None:
        model.take_published(args.start)
    if args.unet is not None:
        model.keep_unet(
            torch.load(RUNS / args.unet / "checkpoint.pt", weights_only=True, map_location="cpu")["average"]
        )
    if (start := RUNS / args.run / "start.pt").exists():
        model.load_state_dict(torch.load(start, weights_only=True))
    model.to(device=on, memory_format=torch.channels_last)  # type: ignore[call-overload]
    quicken(model)
    recipe = Recipe(args.run, args.minutes * 60, args.batch, 5e-4, weight_decay=0.01, checkpoint_every=150)
    progress = train(model, examples.loss, recipe)
    print(recipe_record(recipe, progress))


if __name__ == "__main__":
    main()
