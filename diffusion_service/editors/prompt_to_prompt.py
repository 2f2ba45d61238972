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

import torch
from torch import Tensor
from torch.nn.functional import interpolate, max_pool2d

from diffusion_service.alignment import Alignment, align, positions
from diffusion_service.attention import AttentionMaps, CrossEdit, Injection
from diffusion_service.editors.inversion import Inversion
from diffusion_service.prompts import Conditioning
from diffusion_service.stable_diffusion import Control, StableDiffusion
from diffusion_service.steps import Steps
from shared.images import Pixels
from shared.problems import InvalidInput, NotFinite
from shared.schemas.diffusion import LocalBlend, PromptEdit


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


@dataclass(frozen=True, slots=True)
class Edited:
    """The image at the model's size (height × width × 3), the prompt as it was read, and the cost."""

    image: Pixels
    prompt: str
    evaluations: int


@dataclass(frozen=True, slots=True)
class _Target:
    item: EditItem
    prompt: str
    wanted: Conditioning
    alignment: Alignment
    weights: Tensor
    blend_tokens: tuple[Sequence[int], Sequence[int]]  # of the source's and the target's phrase


class PromptToPromptEditor:
    """The editor `prompt_to_prompt`; several threads may call `edit`."""

    def __init__(self, weights: StableDiffusion, *, fixed_shapes: bool = False) -> None:
        """With `fixed_shapes` every target has its own source row: a batch's shape follows from its size.

        The UNet's attention layers must support injection (`attention.install`).
        """
        self._weights = weights
        self._fixed_shapes = fixed_shapes

    def edit(self, key: EditKey, items: Sequence[EditItem]) -> list[Edited | InvalidInput | NotFinite]:
        """One image, or the reason why there is none, per item."""
        prepared = [self._prepare(item) for item in items]
        ready = [target for target in prepared if isinstance(target, _Target)]
        if not ready:
            return [target for target in prepared if isinstance(target, InvalidInput)]
        # A refused item is replaced, so that the shape of the batch (and so its bits) does not change.
        images = self._denoise(key, [target if isinstance(target, _Target) else ready[0] for target in prepared])
        evaluations = key.steps * (2 if key.guidance > 1 else 1)
        return [
            target
            if isinstance(target, InvalidInput)
            else (image if isinstance(image, NotFinite) else Edited(image, target.prompt, evaluations))
            for target, image in zip(prepared, images, strict=True)
        ]

    def _prepare(self, item: EditItem) -> _Target | InvalidInput:
        prompts, caption, edit = self._weights.prompts, item.inversion.caption, item.edit
        try:
            prompt = prompts.fitted(edit.prompt)
            if prompt == caption and prompt != edit.prompt:
                raise InvalidInput(
                    "the new prompt differs from the caption only after what the text encoder can read; shorten both"
                )
            wanted, words = prompts.encode(prompt), prompts.words(prompt)
            alignment = align(prompts.words(caption), words, len(wanted.states), edit.attention)
            weights = torch.ones(len(wanted.states), dtype=torch.float32)
            for emphasis in edit.weights:
                message = f"the new prompt has no phrase “{emphasis.phrase}” to weigh"
                weights[positions(words, prompts.words(emphasis.phrase), message)] = emphasis.weight
            blend_tokens = self._blend_tokens(caption, prompt, edit.blend)
        except InvalidInput as problem:
            return problem
        return _Target(item, prompt, wanted, alignment, weights, blend_tokens)

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


class _Batch:
    """Targets and their sources while sampling; tensors that do not change over the steps are built once."""

    def __init__(
        self, weights: StableDiffusion, key: EditKey, targets: Sequence[_Target], steps: Steps, fixed_shapes: bool
    ) -> None:
        inversions = [target.item.inversion for target in targets]
        self._weights, self._steps, self._targets = weights, steps, targets
        self._sources = inversions if fixed_shapes else list(dict.fromkeys(inversions))
        rows = range(len(targets)) if fixed_shapes else [self._sources.index(inversion) for inversion in inversions]
        device = weights.device
        self._source_of = torch.tensor(list(rows), device=device)
        self._guidance = key.guidance
        repeats = 2 if key.guidance > 1 else 1
        self._controls = _controls(weights, self._sources + inversions * repeats, key.control_scale)
        self._source_states = torch.stack([inversion.conditioning.states for inversion in self._sources])
        self._states = torch.stack([target.wanted.states for target in targets])
        null = weights.prompts.encode("")
        wanted = [target.wanted for target in targets]
        conditionings = (
            [inversion.conditioning for inversion in self._sources] + [null] * (repeats - 1) * len(targets) + wanted
        )
        self._added = weights.added(conditionings, key.width, key.height)
        self._mapping = torch.stack([target.alignment.mapping for target in targets]).to(device)
        self._share = torch.stack([target.alignment.share for target in targets]).to(device)
        self._token_weights = torch.stack([target.weights for target in targets]).to(device)
        self._maps = AttentionMaps() if any(target.item.edit.blend for target in targets) else None

    def start(self) -> Tensor:
        """The latents that the targets start from: their sources' noise."""
        return torch.stack([target.item.inversion.latents[0] for target in self._targets])

    def down(self, step: int, latents: Tensor) -> Tensor:
        """The targets' latents after one step."""
        sources = torch.stack([inversion.latents[step] for inversion in self._sources])
        injection = self._injection(step, latents[0, 0].numel())
        time = self._steps.times[step]
        if self._guidance > 1:
            nulls = torch.stack([target.item.inversion.nulls[step] for target in self._targets])
            states = torch.cat([self._source_states, nulls.to(self._states), self._states])
            inputs = torch.cat([sources, latents, latents])
            output = self._weights.predict(inputs, time, states, self._added, self._controls, injection)
            unconditional, conditional = output[len(sources) :].chunk(2)
            predicted = unconditional + self._guidance * (conditional - unconditional)
        else:
            states = torch.cat([self._source_states, self._states])
            inputs = torch.cat([sources, latents])
            output = self._weights.predict(inputs, time, states, self._added, self._controls, injection)
            predicted = output[len(sources) :]
        latents = self._steps.down(step, latents, predicted)
        return latents if self._maps is None else self._blended(step, latents, self._maps)

    def _injection(self, step: int, latent_positions: int) -> Injection:
        items = [target.item for target in self._targets]
        inject = [step < round(item.self_fraction * len(self._steps)) for item in items]
        follow = [step < round(item.edit.cross_fraction * len(self._steps)) for item in items]
        share = self._share * torch.tensor(follow, device=self._share.device)[:, None]
        return Injection(
            sources=len(self._sources),
            source_of=self._source_of,
            guided=self._guidance > 1,
            self_from=torch.tensor(inject, device=self._share.device).nonzero()[:, 0],
            # The finest maps (64² of 64² latents in Stable Diffusion) stay the target's own, as in the authors' code.
            largest_self=latent_positions // 4,
            cross=CrossEdit(self._mapping, share, self._token_weights),
            maps=self._maps,
        )

    def _blended(self, step: int, latents: Tensor, maps: AttentionMaps) -> Tensor:
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
            own = attention_to(attention[len(self._sources) + row], of_target, height, width)
            source = attention_to(attention[self._source_of[row]], of_source, height, width)
            inside = (own > blend.threshold) | (source > blend.threshold)
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
