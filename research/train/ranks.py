"""Training in several processes (ranks), each with batches of its own: `torchrun --nproc-per-node 4 -m MODULE`.

Every rank holds the same model. Gradients are averaged, and rank 0 alone keeps time, checkpoints and the log. Without
torchrun's variables there is one rank.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, distributed


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process, `rank` of `count`."""

    rank: int
    count: int

    @classmethod
    def join(cls) -> Self:
        """Join the other processes that torchrun started."""
        count = int(os.environ.get("WORLD_SIZE", 1))
        if count > 1 and not distributed.is_initialized():
            distributed.init_process_group("gloo")
        return cls(distributed.get_rank() if count > 1 else 0, count)

    @property
    def first(self) -> bool:
        """Whether this is the rank that writes."""
        return self.rank == 0

    def batch(self, step: int) -> int:
        """The number of this rank's batch at a step."""
        return step * self.count + self.rank

    def agree(self, value: float) -> float:
        """Rank 0's value."""
        if self.count == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        distributed.broadcast(shared, 0)
        return float(shared)

    def average_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Give all ranks the mean of their gradients."""
        if self.count == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        distributed.all_reduce(together)
        together /= self.count
        for gradient, mean in zip(gradients, torch.split(together, [g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))
