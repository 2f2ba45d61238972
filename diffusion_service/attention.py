"""Attention in which the target rows of a batch use their source row's attention (prompt-to-prompt, arXiv 2208.01626).

A batch holds rows of three kinds, in this order:

    sources         the source image under its own caption
    unconditional   the targets under the null embedding; missing without guidance; never changed
    targets         the targets under their new prompts

Self-attention is injected by letting a target row use its source row's queries and keys with its own values, which
applies the source's attention map without computing it. Cross-attention maps are small and computed explicitly:

    map = ((source map · mapping) · share + own map · (1 − share)) · weights

The injection is an argument of each forward pass, through diffusers' `cross_attention_kwargs`; the processor keeps no
state. A pass without an injection computes the same as diffusers' own processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class CrossEdit:
    """How cross-attention maps of the targets follow their sources'; see the module's docstring.

    `mapping` is targets × source tokens × tokens, `share` (0 … 1, how much of a token's attention comes from the
    source) and `weights` are targets × tokens.
    """

    mapping: Tensor
    share: Tensor
    weights: Tensor

    def apply(self, source: Tensor, target: Tensor) -> Tensor:
        """Combine the maps of sources and targets, each targets × heads × positions × tokens."""
        share = self.share[:, None, None]
        mapped = source @ self.mapping[:, None]
        return (mapped * share + target * (1 - share)) * self.weights[:, None, None]


class AttentionMaps:
    """Cross-attention summed over heads, layers and steps, per number of positions: rows × positions × tokens."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def add(self, maps: Tensor) -> None:
        """Add one layer's maps: rows × heads × positions × tokens."""
        positions = maps.shape[2]
        self._sums[positions] = self._sums.get(positions, 0.0) + maps.mean(dim=1)

    def semantic(self, positions: int) -> Tensor:
        """The maps at the level nearest to a quarter of the latent's side, where words are best distinguished.

        `positions` is the number of positions of the latent.
        """
        target_positions = positions / 16
        return self._sums[min(self._sums, key=lambda size: max(size / target_positions, target_positions / size))]


@dataclass(frozen=True, slots=True)
class Injection:
    """What the attention layers inject in one forward pass.

    `source_of` is the source row of each target; `self_from` the indices of the targets whose self-attention
    comes from their source, in layers of at most `largest_self` positions; with `cross` None, cross-attention is
    unchanged. `maps`, if given, collects the cross-attention that sources and targets used.
    """

    sources: int
    source_of: Tensor
    guided: bool = True
    self_from: Tensor | None = None
    largest_self: int = 0
    cross: CrossEdit | None = None
    maps: AttentionMaps | None = None
    reached: set[str] = field(default_factory=set)
    _looks_like: list[Tensor] = field(default_factory=list)

    @property
    def targets(self) -> int:
        """The number of targets; with guidance each has two rows."""
        return len(self.source_of)

    def check_reached(self) -> None:
        """Raise RuntimeError unless the pass went through self- and cross-attention layers that support injection."""
        if missing := {"self", "cross"} - self.reached:
            raise RuntimeError(
                f"the injection reached no {' and no '.join(sorted(missing))}-attention layer of the UNet; "
                "another attention processor was installed, or its layers are of an unknown kind"
            )

    def self_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The layer's output; all are rows × heads × positions × width."""
        self.reached.add("self")
        if self.self_from is not None and query.shape[2] <= self.largest_self:
            looks_like = self._rows(len(query), self.self_from)
            query, key = query[looks_like], key[looks_like]
        return scaled_dot_product_attention(query, key, value)

    def _rows(self, rows: int, self_from: Tensor) -> Tensor:
        """The row whose queries and keys each row uses in self-attention; built once, on the device."""
        if not self._looks_like:
            looks_like = torch.arange(rows, device=self_from.device)
            looks_like[rows - self.targets + self_from] = self.source_of[self_from]
            self._looks_like.append(looks_like)
        return self._looks_like[0]

    def cross_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """The layer's output; all are rows × heads × positions × width, keys and values with tokens for positions."""
        self.reached.add("cross")
        if self.cross is None and self.maps is None:
            return scaled_dot_product_attention(query, key, value)
        first = len(query) - self.targets

        def edit_rows(rows: Tensor) -> Tensor:  # slices: a list of indices would be copied to the device in every layer
            return torch.cat([rows[: self.sources], rows[first:]])

        scale = query.shape[-1] ** -0.5
        scores = (edit_rows(query).float() * scale) @ edit_rows(key).float().transpose(-1, -2)
        sources, targets = scores.softmax(dim=-1).split([self.sources, self.targets])
        if self.cross is not None:
            targets = self.cross.apply(sources[self.source_of], targets)
        maps = torch.cat([sources, targets])
        if self.maps is not None:
            self.maps.add(maps)
        attended = maps.to(value.dtype) @ edit_rows(value)
        free = slice(self.sources, first)
        unconditional = scaled_dot_product_attention(query[free], key[free], value[free])
        return torch.cat([attended[: self.sources], unconditional, attended[self.sources :]])


class InjectingProcessor:
    """An attention processor of diffusers that carries out an `Injection`."""

    def __init__(self) -> None:
        self._plain = AttnProcessor2_0()

    def __call__(
        self,
        attn: Attention,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        injection: Injection | None = None,
    ) -> Tensor:
        """See diffusers' `Attention.forward`; `injection` arrives by `cross_attention_kwargs`."""
        if injection is None:
            plain: Tensor = self._plain(attn, hidden_states, encoder_hidden_states, attention_mask, temb)
            return plain
        context = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        projected = (attn.to_q(hidden_states), attn.to_k(context), attn.to_v(context))
        query, key, value = (part.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for part in projected)
        attend = injection.self_attention if encoder_hidden_states is None else injection.cross_attention
        mixed = attend(query, key, value).transpose(1, 2).flatten(2)
        result: Tensor = attn.to_out[1](attn.to_out[0](mixed))
        return result


def install(unet: Any) -> None:
    """Give every attention layer of a UNet a processor that supports injection.

    Raises ValueError if the UNet has no attention layers, or one (named in the message) that is not plain attention.
    """
    layers: Mapping[str, Any] = {name: module for name, module in unet.named_modules() if isinstance(module, Attention)}
    if not layers:
        raise ValueError("prompt-to-prompt needs attention layers, and this UNet has none that diffusers exposes")
    for name, layer in layers.items():
        extras = (layer.spatial_norm, layer.group_norm, layer.norm_q, layer.norm_k, layer.norm_cross)
        if any(extra is not None for extra in extras) or layer.residual_connection or layer.rescale_output_factor != 1:
            raise ValueError(f"prompt-to-prompt supports plain attention only, and {name} is of another kind")
    unet.set_attn_processor(InjectingProcessor())
