"""A small size for measurements of cost."""

from __future__ import annotations

from benchmarks.cost_weights import Shape

SMALL = Shape(
    latent=8, unet=(16, 32), layers=1, heads=2, vae=(8, 16, 16, 16), text=16, text_layers=1, text_heads=2,
    hint=(8, 8, 16, 16), groups=8,
)  # fmt: skip
