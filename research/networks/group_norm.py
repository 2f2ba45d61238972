"""Group normalisation with a fast backward pass on CPU.

torch's own backward is the largest part of a bf16, channels-last training step on CPU (37 % of the
autoencoder's). This one does the same sums as two matrix products and two fused multiply-adds, 5 to 20
times faster, with the same error against fp32. Parameters and results are those of nn.GroupNorm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        n, channels, height, width = x.shape
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        y: Tensor
        y, mean, rstd = torch.native_group_norm(x, weight, bias, n, channels, height * width, groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        """With y = (x - mean) rstd w + b: dL/dx is a dy + p x + q, its coefficients constant per image and channel."""
        x, weight, mean, rstd = ctx.saved_tensors
        (n, channels, height, width), groups = x.shape, mean.shape[1]
        share = channels // groups
        flat = x.permute(0, 2, 3, 1).reshape(n, height * width, channels)
        dy = gradients[0].to(x.dtype).permute(0, 2, 3, 1).reshape(n, height * width, channels)
        ones = torch.ones(n, 1, height * width, dtype=x.dtype, device=x.device)
        sum_dy, sum_xdy = torch.bmm(ones, dy)[:, 0].float(), torch.bmm(ones, flat * dy)[:, 0].float()
        mean, rstd = (v.float().repeat_interleave(share, 1) for v in (mean, rstd))
        w: Tensor = weight.float()

        def over_group(sums: Tensor) -> Tensor:
            return (sums * w).view(n, groups, share).sum(2).repeat_interleave(share, 1)

        p = (over_group(sum_dy) * mean - over_group(sum_xdy)) * rstd**3 / (share * height * width)
        q = -p * mean - over_group(sum_dy) * rstd / (share * height * width)
        a, p, q = ((rstd * w).to(x.dtype)[:, None], p.to(x.dtype)[:, None], q.to(x.dtype)[:, None])
        dx: Tensor = torch.addcmul(torch.addcmul(q.expand_as(flat), flat, p), dy, a)
        d_weight, d_bias = ((sum_xdy - sum_dy * mean) * rstd).sum(0), sum_dy.sum(0)
        return dx.view(n, height, width, channels).permute(0, 3, 1, 2), d_weight, d_bias, None, None


class FastGroupNorm(nn.GroupNorm):
    """nn.GroupNorm with the fast backward pass; a drop-in for existing instances."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4 or not torch.is_grad_enabled():
            return super().forward(x)
        result: Tensor = _Normalise.apply(x, self.weight, self.bias, self.num_groups, self.eps)  # type: ignore[no-untyped-call]
        return result


def speed_up_group_norm(model: nn.Module) -> None:
    """Give every GroupNorm of a model the fast backward pass, in place; its state dict does not change."""
    for module in model.modules():
        if type(module) is nn.GroupNorm:
            module.__class__ = FastGroupNorm
