"""Muon: momentum whose every matrix is replaced by the nearest orthogonal one before it is applied.

Refuses to know models and schedules. Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers". For the
momentum M = U S V^T the step is U V^T, found without a decomposition by five rounds of the quintic

    X <- a X + (b A + c A A) X,    A = X X^T

started at M / |M|. On models of this size it reaches a loss in about two thirds of AdamW's tokens. PyTorch's own Muon
computes in bfloat16, which processors without such arithmetic emulate slowly; this one stays in float32.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """For two-dimensional weights between layers; embeddings, heads and norms belong to AdamW."""

    def __init__(self, weights: Iterable[Tensor], *, lr: float, momentum: float = 0.95, decay: float = 0.01) -> None:
        super().__init__(list(weights), {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, _closure: None = None) -> None:  # type: ignore[override]  # one gradient, one step: no closure
        for group in self.param_groups:
            for weight in group["params"]:
                self._move(weight, group)

    def _move(self, weight: Tensor, group: dict[str, float]) -> None:
        if weight.grad is None:
            return
        state = self.state[weight]
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        momentum.lerp_(weight.grad, 1 - group["momentum"])
        direction = orthogonal(weight.grad.lerp(momentum, group["momentum"]))
        scale: float = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
        weight.mul_(1 - group["lr"] * group["decay"]).add_(direction, alpha=-group["lr"] * scale)


def orthogonal(matrix: Tensor) -> Tensor:
    """The orthogonal factor of ``matrix`` [rows, columns], to within a tenth or two in each singular value."""
    a, b, c = QUINTIC
    x = matrix / (matrix.norm() + 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    factor: Tensor = x.T if tall else x
    return factor
