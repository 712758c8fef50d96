"""Train a small policy by REINFORCE where one engine samples and another computes the gradients, in
one format.

At this size the mismatch does no visible harm: policies learn the task in fp32, fp16 and bf16, and
seeds differ more than formats do. `gradient_gap` shows why: the mismatch changes the gradient of a
batch by about half a percent in fp16 and 3 to 6 % in bf16, and another batch changes it by about
100 %. Such a bias can matter only where it adds up, over more steps, longer sequences and larger
models: there Qi et al. 2025 (arXiv:2510.26788) report that fp16 is more stable.

Gradients are not rounded here, so fp16's small range does no harm; real fp16 training needs a loss
scale.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.bits import FloatFormat
from amp_course.frontiers.engines import Policy
from amp_course.frontiers.mismatch import Mismatch, log_probs, sample
from amp_course.kit.models import CharGPT
from amp_course.kit.threads import one_thread


@dataclass(frozen=True)
class GradientGap:
    """How much the mismatch, and chance, change a policy gradient, relative to its norm.

    mismatch: ‖gradient without importance weights − with them‖ / ‖with them‖, on the same batch
    chance:   ‖gradient of this batch − of another‖ / ‖of this batch‖
    """

    format: str
    mismatch: float
    chance: float


def alternation(ids: Tensor) -> Tensor:
    """Return a reward for each sequence: the share of its characters that repeat the one before the
    last, but not the last.

    ids: (sequences, tokens + 1), the first of which is not counted → (sequences,), from 0 to 1
    Example: "·ababab" → 1.0, "·aaaaaa" → 0.0
    """
    drawn = ids[:, 1:]
    same, other = drawn[:, 2:] == drawn[:, :-2], drawn[:, 1:-1] != drawn[:, :-2]
    return (same & other).float().mean(1)


@one_thread()
def reinforce(
    model: CharGPT,
    fmt: FloatFormat,
    *,
    seed: int = 0,
    steps: int = 40,
    sequences: int = 32,
    tokens: int = 16,
) -> list[float]:
    """Train a copy of a policy to alternate two characters, without correcting for the mismatch,
    and return the mean reward of each step's batch, from 0 to 1.

    Each step samples with the inference engine, takes the batch's mean reward as baseline, and
    differentiates through the training engine; Adam updates fp32 weights at a rate of 0.01; the
    norm of the gradient is clipped to 1. 40 steps take 1 to 2 s.
    Example: reinforce(small_policy(steps=60), BF16)[-1] → 1.0, or less where a seed is unlucky
    """
    model = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    rewards = []
    for step in range(steps):
        batch = _Batch.draw(model, fmt, sequences, tokens, seed * steps + step)
        optimizer.zero_grad()
        batch.loss(torch.ones(sequences)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rewards.append(batch.reward.mean().item())
    return rewards


@one_thread()
def gradient_gap(
    model: CharGPT, fmt: FloatFormat, *, sequences: int = 32, tokens: int = 127
) -> GradientGap:
    """Compare what the mismatch does to the first gradient of `reinforce` with what chance does.

    Importance weights, one per sequence, make the estimate of training's policy gradient right on
    average; without them it is right for neither engine. Takes about half a second.
    """
    model = copy.deepcopy(model)
    batch, other = (_Batch.draw(model, fmt, sequences, tokens, seed) for seed in range(2))
    plain = _gradient(model, batch, torch.ones(sequences))
    weighted = _gradient(model, batch, batch.mismatch.sequence_ratios.float())
    another = _gradient(model, other, other.mismatch.sequence_ratios.float())
    length = weighted.norm()
    return GradientGap(
        fmt.name,
        ((plain - weighted).norm() / length).item(),
        ((another - weighted).norm() / length).item(),
    )


@dataclass(frozen=True, eq=False)
class _Batch:
    reward: Tensor  # (sequences,)
    log_p: Tensor  # of training, (sequences, tokens), with a graph
    mismatch: Mismatch

    @classmethod
    def draw(
        cls, model: CharGPT, fmt: FloatFormat, sequences: int, tokens: int, seed: int
    ) -> _Batch:
        ids, sampled = sample(model, fmt, sequences, tokens, seed)
        log_p = log_probs(Policy(model, fmt), ids)
        return cls(alternation(ids), log_p, Mismatch(fmt.name, log_p.detach() - sampled))

    def loss(self, weights: Tensor) -> Tensor:
        """Return a loss whose gradient is minus the policy gradient."""
        advantage = self.reward - self.reward.mean()
        return -(weights * advantage * self.log_p.sum(1)).mean()


def _gradient(model: CharGPT, batch: _Batch, weights: Tensor) -> Tensor:
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(batch.loss(weights), parameters, retain_graph=True)
    return torch.cat([gradient.flatten() for gradient in gradients])
