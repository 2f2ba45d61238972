"""Prompt-to-prompt editing of an inverted source image (arXiv 2208.01626, with the source branch of `inversion.py`).

A target starts from the source's noise and is sampled under its new prompt with guidance. In the first steps its
self-attention is the source's (`self_fraction`), and its cross-attention follows the source's where the prompts
agree (`cross_fraction`; `alignment.py`). The source branch runs in the same batch, once for all its targets, and only
under its caption: its latents are known from the inversion, so nothing is sampled there.

Targets of any sources, prompts, fractions and options share a batch where their `EditKey` is equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d

from diffusion_service.alignment import Alignment, align, positions
from diffusion_service.attention import AttentionMaps, CrossEdit, Injection
from diffusion_service.editors.inversion import Inversion, Steps
from diffusion_service.prompts import Conditioning
from diffusion_service.stable_diffusion import Control, StableDiffusion
from shared.media.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.schemas.diffusion import LocalBlend, PromptEdit

_Injected: TypeAlias = tuple[tuple[bool, ...], tuple[bool, ...]]  # per target: its self- and cross-attention is


@dataclass(frozen=True, slots=True)
class EditKey:
    """Targets with equal keys share a batch; sizes in pixels."""

    width: int
    height: int
    steps: int
    guidance: float
    control_scale: float | None  # None: without a ControlNet


@dataclass(frozen=True, slots=True)
class EditItem:
    """One target: an edit of an inverted source image under one self-attention fraction."""

    inversion: Inversion
    edit: PromptEdit
    self_fraction: float


class EditResult:
    """What becomes of one edit: `Edited` or `Refusal`."""


@dataclass(frozen=True, slots=True)
class Edited(EditResult):
    """The image at the model's size (height × width × 3), the prompt as it was read, and the cost.

    `source_evaluations` are those of its source's row, which other targets may share.
    """

    image: Pixels
    prompt: str
    evaluations: int
    source_evaluations: int


@dataclass(frozen=True, slots=True)
class Refusal(EditResult):
    """Why an edit cannot be made; the other edits of its request can."""

    reason: str


@dataclass(frozen=True, slots=True)
class _Target:
    item: EditItem
    prompt: str
    conditioning: Conditioning
    alignment: Alignment
    weights: Tensor
    blend_tokens: tuple[Sequence[int], Sequence[int]]  # of the source's and the target's phrase


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The networks' inputs that are the same in every step; the null embeddings among the states are replaced."""

    states: Tensor
    added: dict[str, Tensor] | None
    controls: Sequence[Control]


class PromptToPromptEditor:
    """The editor `prompt_to_prompt`; several threads may call `edit`."""

    def __init__(self, weights: StableDiffusion, *, fixed_shapes: bool = False) -> None:
        """With `fixed_shapes` every target has its own source row: a batch's shape follows from its size.

        The UNet's attention layers must support injection (`attention.install`).
        """
        self._weights = weights
        self._fixed_shapes = fixed_shapes

    def edit(self, key: EditKey, items: Sequence[EditItem]) -> list[EditResult | NotFinite]:
        """One image, or the reason why there is none, per item."""
        prepared = [self._prepare(item) for item in items]
        ready = [target for target in prepared if isinstance(target, _Target)]
        if not ready:
            return [target for target in prepared if isinstance(target, Refusal)]
        # A refused item is replaced, so that the shape of the batch, and therefore its bits, do not change.
        images = self._denoise(key, [target if isinstance(target, _Target) else ready[0] for target in prepared])
        return [
            self._edit(key, target, image) if isinstance(target, _Target) else target
            for target, image in zip(prepared, images, strict=True)
        ]

    def _edit(self, key: EditKey, target: _Target, image: Pixels | NotFinite) -> Edited | NotFinite:
        if isinstance(image, NotFinite):
            return image
        evaluations = key.steps * (2 if key.guidance > 1 else 1)
        return Edited(image, target.prompt, evaluations, source_steps(target.item, key.steps, self._fixed_shapes))

    def _prepare(self, item: EditItem) -> _Target | Refusal:
        prompts, caption, edit = self._weights.prompts, item.inversion.caption, item.edit
        try:
            prompt = prompts.fit(edit.prompt)
            if prompt == caption and prompt != edit.prompt:
                raise InvalidInput(
                    "the new prompt differs from the caption only after what the text encoder can read; shorten both"
                )
            conditioning, words = prompts.encode(prompt), prompts.words(prompt)
            alignment = align(prompts.words(caption), words, len(conditioning.states), edit.attention)
            weights = torch.ones(len(conditioning.states), dtype=torch.float32)
            for emphasis in edit.weights:
                message = f"the new prompt has no phrase “{emphasis.phrase}” to weigh"
                weights[positions(words, prompts.words(emphasis.phrase), message)] = emphasis.weight
            blend_tokens = self._blend_tokens(caption, prompt, edit.blend)
        except InvalidInput as problem:
            return Refusal(problem.detail)
        return _Target(item, prompt, conditioning, alignment, weights, blend_tokens)

    def _blend_tokens(self, caption: str, prompt: str, blend: LocalBlend | None) -> tuple[list[int], list[int]]:
        if blend is None:
            return [], []
        words = self._weights.prompts.words
        return (
            positions(words(caption), words(blend.source_phrase), f"the caption has no phrase “{blend.source_phrase}”"),
            positions(words(prompt), words(blend.phrase), f"the new prompt has no phrase “{blend.phrase}”"),
        )

    @torch.inference_mode()
    def _denoise(self, key: EditKey, targets: Sequence[_Target]) -> list[Pixels | NotFinite]:
        """Images of height × width × 3, at the model's size."""
        steps = Steps.of(self._weights.sampling.config, key.steps)
        batch = _Batch(self._weights, key, targets, steps, self._fixed_shapes)
        latents = batch.start()
        for step in range(len(steps)):
            latents = batch.down(step, latents)
        return self._weights.pictures(latents)


def source_steps(item: EditItem, steps: int, fixed_shapes: bool = False) -> int:
    """The number of steps, from the first, in which a target needs its source in the batch.

    LocalBlend and re-weighting need the attention maps to the end; with `fixed_shapes` no row leaves a batch.
    """
    edit = item.edit
    if fixed_shapes or edit.blend is not None or edit.weights:
        return steps
    return max(round(item.self_fraction * steps), round(edit.cross_fraction * steps))


class _Batch:
    """Targets and their sources while sampling; tensors that do not change over the steps are built once.

    Once no target needs its source any more, the sources leave the batch.
    """

    def __init__(
        self, weights: StableDiffusion, key: EditKey, targets: Sequence[_Target], steps: Steps, fixed_shapes: bool
    ) -> None:
        inversions = [target.item.inversion for target in targets]
        self._weights, self._key, self._steps, self._targets = weights, key, steps, targets
        self._sources = inversions if fixed_shapes else list(dict.fromkeys(inversions))
        rows = range(len(targets)) if fixed_shapes else [self._sources.index(inversion) for inversion in inversions]
        device = weights.device
        self._source_of = torch.tensor(list(rows), device=device)
        self._nulls = [weights.prompts.encode("")] * (len(targets) if key.guidance > 1 else 0)
        conditionings = [target.conditioning for target in targets]
        self._inputs = self._stack_inputs([*self._nulls, *conditionings], inversions * (2 if self._nulls else 1))
        self._inputs_with_sources = self._stack_inputs(
            [*(inversion.conditioning for inversion in self._sources), *self._nulls, *conditionings],
            [*self._sources, *inversions * (2 if self._nulls else 1)],
        )
        self._mapping = torch.stack([target.alignment.mapping for target in targets]).to(device)
        self._share = torch.stack([target.alignment.share for target in targets]).to(device)
        self._token_weights = torch.stack([target.weights for target in targets]).to(device)
        self._maps = AttentionMaps() if any(target.item.edit.blend for target in targets) else None
        self._reweighted = any(target.item.edit.weights for target in targets)
        self._fixed_shapes = fixed_shapes
        self._source_steps = max(source_steps(target.item, len(steps), fixed_shapes) for target in targets)
        self._injected: tuple[_Injected, Injection] | None = None

    def _stack_inputs(self, conditionings: Sequence[Conditioning], rows: Sequence[Inversion]) -> _Inputs:
        weights, key = self._weights, self._key
        return _Inputs(
            states=torch.stack([conditioning.states for conditioning in conditionings]),
            added=weights.added_conditions(conditionings, key.width, key.height),
            controls=_controls(weights, rows, key.control_scale),
        )

    def start(self) -> Tensor:
        """The latents that the targets start from: their sources' noise."""
        return torch.stack([target.item.inversion.latents[0] for target in self._targets])

    def down(self, step: int, latents: Tensor) -> Tensor:
        """The targets' latents after one step."""
        injection = self._injection(step, latents[0, 0].numel())
        sources = [] if injection is None else [inversion.latents[step] for inversion in self._sources]
        inputs = self._inputs if injection is None else self._inputs_with_sources
        rows = torch.cat([*(source[None] for source in sources), *[latents] * (2 if self._nulls else 1)])
        states = inputs.states
        if self._nulls:
            nulls = torch.stack([target.item.inversion.nulls[step] for target in self._targets])
            first = len(sources)
            states = torch.cat([states[:first], nulls.to(states), states[first + len(nulls) :]])
        output = self._weights.predict(
            rows, self._steps.times[step], states, inputs.added, inputs.controls, injection
        )[len(sources) :]  # fmt: skip
        if self._nulls:
            unconditional, conditional = output.chunk(2)
            output = unconditional + self._key.guidance * (conditional - unconditional)
        latents = self._steps.down(step, latents, output)
        return latents if self._maps is None else self._blend(step, latents, self._maps)

    def _injection(self, step: int, latent_positions: int) -> Injection | None:
        """The injection of a step, None for no injection. Equal steps share one, so that its tensors are built once."""
        items = [target.item for target in self._targets]
        own_self = tuple(step < round(item.self_fraction * len(self._steps)) for item in items)
        follow = tuple(step < round(item.edit.cross_fraction * len(self._steps)) for item in items)
        if step >= self._source_steps:
            return None
        if self._injected is None or self._injected[0] != (own_self, follow):
            share = self._share * torch.tensor(follow, device=self._share.device)[:, None]
            explicit = any(follow) or self._reweighted or self._fixed_shapes
            injection = Injection(
                sources=len(self._sources),
                source_of=self._source_of,
                guided=bool(self._nulls),
                self_from=torch.tensor(own_self, device=self._share.device).nonzero()[:, 0],
                largest_self=self._weights.shared_self_attention(latent_positions),
                cross=CrossEdit(self._mapping, share, self._token_weights) if explicit else None,
                maps=self._maps,
            )
            self._injected = (own_self, follow), injection
        return self._injected[1]

    def _blend(self, step: int, latents: Tensor, maps: AttentionMaps) -> Tensor:
        """LocalBlend: use the source's latents wherever neither source nor target attends to the edit's phrases."""
        attention = maps.semantic(latents[0, 0].numel())
        rows = []
        for row, target in enumerate(self._targets):
            blend = target.item.edit.blend
            if blend is None or step < round(blend.start * len(self._steps)):
                rows.append(latents[row])
                continue
            of_source, of_target = target.blend_tokens
            height, width = latents.shape[-2:]
            target_attention = attention_to(attention[len(self._sources) + row], of_target, height, width)
            source_attention = attention_to(attention[self._source_of[row]], of_source, height, width)
            inside = (target_attention > blend.threshold) | (source_attention > blend.threshold)
            rows.append(torch.where(inside, latents[row], target.item.inversion.latents[step + 1]))
        return torch.stack(rows)


def attention_to(maps: Tensor, tokens: Sequence[int], height: int, width: int) -> Tensor:
    """How much each position of a `height` × `width` latent attends to tokens: 0 … 1, 1 where it is strongest.

    `maps` is positions × tokens at some level of the UNet. A maximum over 3 × 3 positions widens it, as the authors do.
    """
    scale = round((height * width / len(maps)) ** 0.5)
    summed = maps[:, list(tokens)].sum(dim=-1).reshape(1, 1, height // scale, width // scale)
    wide = interpolate(max_pool2d(summed, 3, stride=1, padding=1), (height, width), mode="bilinear")[0, 0]
    return wide / wide.max()


def _controls(weights: StableDiffusion, rows: Sequence[Inversion], scale: float | None) -> list[Control]:
    images = [row.control for row in rows if row.control is not None]
    return [] if scale is None else [weights.control(images, scale)]
