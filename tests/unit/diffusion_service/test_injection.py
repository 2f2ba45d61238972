"""Attention injection on small tensors, against a plain implementation for one row."""

from __future__ import annotations

import pytest
import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import Attention, AttnProcessor2_0
from torch import Tensor

from diffusion_service.attention import AttentionMaps, CrossEdit, InjectingProcessor, Injection, install

HEADS, WIDTH, POSITIONS, TOKENS = 2, 4, 9, 5
SOURCE_OF = torch.tensor([1, 0, 1])  # two sources, three targets
RANDOM = torch.Generator().manual_seed(2)
ROWS = 2 + 3 + 3


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=RANDOM)


def naive_map(query: Tensor, key: Tensor) -> Tensor:
    """One row's attention map, heads × positions × positions or tokens."""
    maps = torch.empty(query.shape[0], query.shape[1], key.shape[1])
    for head in range(query.shape[0]):
        for place in range(query.shape[1]):
            scores = torch.stack([query[head, place] @ other for other in key[head]]) / query.shape[-1] ** 0.5
            maps[head, place] = torch.exp(scores) / torch.exp(scores).sum()
    return maps


def test_self_attention_of_chosen_targets_is_their_sources() -> None:
    query, key, value = (draw(ROWS, HEADS, POSITIONS, WIDTH) for _ in range(3))
    injection = Injection(2, SOURCE_OF, self_from=torch.tensor([0, 2]), largest_self=POSITIONS)
    result = injection.self_attention(query, key, value)
    for row in range(ROWS):
        looks_like = {5: 1, 7: 1}.get(row, row)  # rows 5 to 7 are the conditional ones of the targets
        expected = naive_map(query[looks_like], key[looks_like]) @ value[row]
        assert torch.allclose(result[row], expected, atol=1e-5), row


def test_fine_self_attention_stays_the_targets_own() -> None:
    query, key, value = (draw(ROWS, HEADS, POSITIONS, WIDTH) for _ in range(3))
    injection = Injection(2, SOURCE_OF, self_from=torch.arange(3), largest_self=POSITIONS - 1)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    assert torch.equal(injection.self_attention(query, key, value), expected)


@pytest.mark.parametrize("guided", [True, False])
def test_cross_attention_is_the_sources_carried_over_mixed_and_weighed(guided: bool) -> None:
    rows = ROWS if guided else ROWS - 3
    query, key, value = draw(rows, HEADS, POSITIONS, WIDTH), *(draw(rows, HEADS, TOKENS, WIDTH) for _ in range(2))
    edit = CrossEdit(torch.rand(3, TOKENS, TOKENS), torch.rand(3, TOKENS), draw(3, TOKENS))
    maps = AttentionMaps()
    injection = Injection(2, SOURCE_OF, guided=guided, cross=edit, maps=maps)
    result = injection.cross_attention(query, key, value)
    used = [naive_map(query[row], key[row]) for row in range(rows)]
    for target, source in enumerate(SOURCE_OF.tolist()):
        target_attention = used[rows - 3 + target]
        mixed = torch.empty_like(target_attention)
        for token in range(TOKENS):
            followed = sum(used[source][..., old] * edit.mapping[target, old, token] for old in range(TOKENS))
            share, weight = edit.share[target, token], edit.weights[target, token]
            mixed[..., token] = (share * followed + (1 - share) * target_attention[..., token]) * weight
        used[rows - 3 + target] = mixed
    for row in range(rows):
        assert torch.allclose(result[row], used[row] @ value[row], atol=1e-5), row
    watched = torch.stack([used[row].mean(dim=0) for row in [0, 1, *range(rows - 3, rows)]])
    assert torch.allclose(maps.semantic(POSITIONS * 16), watched, atol=1e-5)


def test_maps_are_taken_from_the_level_where_words_are_told_apart() -> None:
    """A quarter of the latent's side (16² of 64² in Stable Diffusion), or the nearest that there is."""
    maps = AttentionMaps()
    for side in (16, 4, 8):
        maps.add(torch.rand(1, HEADS, side * side, TOKENS))
        maps.add(torch.rand(1, HEADS, side * side, TOKENS))
    assert maps.semantic(32 * 32).shape == (1, 64, TOKENS)
    assert maps.semantic(8 * 8).shape == (1, 16, TOKENS)


def layer(cross: bool) -> Attention:
    torch.manual_seed(3)
    return Attention(8, cross_attention_dim=6 if cross else None, heads=HEADS, dim_head=WIDTH)


@pytest.mark.parametrize("cross", [False, True])
def test_without_an_injection_it_is_diffusers_own_processor(cross: bool) -> None:
    attention, states = layer(cross), draw(3, POSITIONS, 8)
    context = draw(3, TOKENS, 6) if cross else None
    attention.set_processor(AttnProcessor2_0())
    expected = attention(states, context)
    attention.set_processor(InjectingProcessor())
    assert torch.equal(attention(states, context), expected)
    nothing = Injection(3, torch.empty(0, dtype=torch.long), guided=False, maps=AttentionMaps())
    assert torch.allclose(attention(states, context, injection=nothing), expected, atol=1e-6)


def small_unet() -> UNet2DConditionModel:
    torch.manual_seed(4)
    return UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(16, 16),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
        attention_head_dim=2,
        norm_num_groups=8,
    )


def test_hooks_that_reach_no_layer_are_an_error() -> None:
    """The reference code finds layers by class name, finds none on newer diffusers, and edits without injecting."""
    unet, inputs, states = small_unet(), draw(1, 4, 8, 8), draw(1, TOKENS, 8)
    injection = Injection(1, torch.empty(0, dtype=torch.long), guided=False)
    unet(inputs, 5, states, cross_attention_kwargs={"injection": injection})
    with pytest.raises(RuntimeError, match="layer"):
        injection.check_reached()
    install(unet)
    unet(inputs, 5, states, cross_attention_kwargs={"injection": injection})
    injection.check_reached()


def test_networks_without_plain_attention_are_refused() -> None:
    with pytest.raises(ValueError, match="has none"):
        install(torch.nn.Linear(1, 1))
    unet = small_unet()
    unet.mid_block.attentions[0].transformer_blocks[0].attn1.group_norm = torch.nn.GroupNorm(4, 16)
    with pytest.raises(ValueError, match=r"mid_block.*attn1"):
        install(unet)
