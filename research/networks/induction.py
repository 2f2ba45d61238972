"""Initial weights of a Llama that can already copy: induction circuits written in before training.

Small models stay long on a plateau until attention heads form that find where the last few tokens stood before and copy
what followed them (Olsson et al., arXiv 2209.11895). On two CPU cores the plateau costs more than all the rest of the
training, so the circuit is written down. Layer 0: heads attend to the first, second and third position before,
by their biases under RoPE, and write the tokens into the residual stream. Layer 1: heads compare the last one, two or
three tokens with those before each position, attend where they are the same, and output the embedding of the token
there. Training changes all of it, the circuit more slowly than the rest (`CIRCUIT_RATE`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

ROPE_THETA = 1e10  # a quarter of the pairs of a head turn fast enough to tell positions, the others hardly turn
CIRCUIT_RATE = 0.1  # learning rate of the circuit, relative to that of the rest
EMBEDDING_RATE = 0.25
_EMBEDDING_STD = 0.05
_POSITION = 10.0  # bias that makes a head of layer 0 look at one position only
_WRITTEN = 0.1  # scale of what layer 0 writes
_MATCH = 2.5  # sharpness of the comparison in layer 1
_COPIED = 0.7  # scale of what layer 1 writes
_FINAL_NORM = 2.0  # sharper predictions than a fresh model's
_ORDERS = (1, 2, 3)  # how many tokens the heads of layer 1 compare


@torch.no_grad()
def write_induction(model: LlamaForCausalLM, alike: Sequence[tuple[int, int]]) -> None:
    """Write the circuit into heads 0 to 2 of the first two layers of a model with attention biases.

    `alike` are pairs of tokens that start with similar embeddings ("red" and " red"), so that one finds the other.
    """
    width, size = model.config.hidden_size, model.config.head_dim
    embeddings = model.model.embed_tokens.weight
    embeddings.normal_(std=_EMBEDDING_STD)
    for token, similar in alike:
        embeddings[similar] = 0.8 * embeddings[token] + 0.6 * embeddings[similar]
    first, second = (layer.self_attn for layer in model.model.layers[:2])
    previous = _orthonormal(size, width)
    written = [_orthonormal(size, width) for _ in _ORDERS]
    angles = model.model.rotary_emb.inv_freq  # of the pairs (i, i + size / 2) of a head
    half, fast = size // 2, size // 8
    slow = torch.cat([torch.arange(fast, half), torch.arange(fast, half) + half])
    for head, order in enumerate(_ORDERS):
        rows = slice(head * size, (head + 1) * size)
        for projection in (first.q_proj, first.k_proj, second.q_proj, second.k_proj):
            projection.weight[rows] = 0
        first.q_proj.bias[rows][:fast] = _POSITION
        first.k_proj.bias[rows][:fast] = _POSITION * torch.cos(angles[:fast] * order)
        first.k_proj.bias[rows][half : half + fast] = _POSITION * torch.sin(angles[:fast] * order)
        first.v_proj.weight[rows] = previous
        first.o_proj.weight[:, rows] = _WRITTEN * written[head].T
        for back, part in enumerate(slow[torch.randperm(len(slow))].chunk(order)):
            now = previous / (_EMBEDDING_STD / _WRITTEN) if back == 0 else written[back - 1]
            second.q_proj.weight[rows][part] = _MATCH * now[: len(part)]
            second.k_proj.weight[rows][part] = written[back][: len(part)]
        copied = _orthonormal(size, width)
        second.v_proj.weight[rows] = copied
        second.o_proj.weight[:, rows] = _COPIED * copied.T
    model.model.norm.weight.fill_(_FINAL_NORM)
    slow_down(model)


def slow_down(model: LlamaForCausalLM) -> None:
    """Let training change the circuit, and the embeddings that it reads, more slowly than the rest."""
    model.model.embed_tokens.rate_factor = EMBEDDING_RATE
    for layer in model.model.layers[:2]:
        layer.self_attn.rate_factor = CIRCUIT_RATE


def _orthonormal(rows: int, columns: int) -> Tensor:
    directions: Tensor = torch.linalg.qr(torch.randn(columns, rows))[0]
    return directions.T
