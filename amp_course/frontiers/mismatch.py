"""Measure how far two engines with the same weights disagree on the probabilities of tokens.

In reinforcement learning for language models one engine samples the tokens and another computes the
gradients. The importance ratio of a token, exp(log p of training − log p of inference), would be 1
in exact arithmetic; rounding causes the training–inference mismatch. Qi et al. 2025, "Defeating the
Training-Inference Mismatch via FP16" (arXiv:2510.26788), blame bf16's few bits: with fp16 in both
engines, they report, it all but vanishes, and training is more stable. The first claim is measured
here, on a small policy; `policy_gradient` examines the second.

fp16 has three more bits in the significand: log-ratios get about 2³ = 8 times smaller, and a
divergence, which is quadratic in them, about 64 times.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from amp_course.bits import FloatFormat, find_format
from amp_course.frontiers.engines import Cache, Policy
from amp_course.frontiers.experiments.training import pretrained_gpt
from amp_course.kit.models import CharGPT
from amp_course.kit.threads import one_thread


@dataclass(frozen=True, eq=False)
class Mismatch:
    """How far two engines disagree on the same tokens.

    format:     of both, "bf16"
    log_ratios: log p of training − log p of inference for each token, (sequences, tokens) float64;
                all 0 if they agree
    """

    format: str
    log_ratios: Tensor

    @property
    def mean(self) -> float:
        """The mean |log-ratio| of a token."""
        return self.log_ratios.abs().mean().item()

    @property
    def largest(self) -> float:
        """The largest |log-ratio| of a token."""
        return self.log_ratios.abs().max().item()

    @property
    def sequence_ratios(self) -> Tensor:
        """The importance ratio of each whole sequence, (sequences,): the product of its tokens'."""
        return self.log_ratios.sum(1).exp()

    @property
    def divergence(self) -> float:
        """The estimated divergence KL(inference ‖ training) of a token, in nats: the mean of
        r − 1 − log r, never negative.

        Source: J. Schulman, "Approximating KL Divergence", 2020, estimator k3.
        """
        return (self.log_ratios.expm1() - self.log_ratios).mean().item()


@one_thread()
def small_policy(seed: int = 0, steps: int = 100, context: int = 128) -> CharGPT:
    """Return a character GPT of 2 layers and width 64, trained briefly in fp32 on Python's
    documentation.

    100 steps take 1 to 3 s. The global random state does not change.
    Raises ValueError for fewer than 1 step.
    """
    with torch.random.fork_rng(devices=[]):
        return pretrained_gpt(context, 4, steps, seed)


@torch.no_grad()
def sample(
    model: CharGPT, fmt: FloatFormat, sequences: int, tokens: int, seed: int
) -> tuple[Tensor, Tensor]:
    """Sample with an inference engine, token by token with a cache of keys and values, at
    temperature 1.

    returns: ids (sequences, tokens + 1), the first of which is 0; and the log-probabilities of the
             others as the engine drew them, (sequences, tokens) float64
    """
    policy = Policy(model, fmt, inference=True)
    generator = torch.Generator().manual_seed(seed)
    ids, chosen = torch.zeros(sequences, 1, dtype=torch.int64), []
    cache: Cache = {}
    for _ in range(tokens):
        log_p = policy.logits(ids[:, -1:], cache)[:, -1].double().log_softmax(-1)
        drawn = torch.multinomial(log_p.exp(), 1, generator=generator)
        chosen.append(log_p.gather(1, drawn))
        ids = torch.cat([ids, drawn], 1)
    return ids, torch.cat(chosen, 1)


def log_probs(policy: Policy, ids: Tensor) -> Tensor:
    """Return the log-probability of each token after the first, computed at once, as in training.

    ids: (sequences, tokens + 1) → (sequences, tokens) float64
    """
    return _chosen(policy.logits(ids[:, :-1]), ids)


@one_thread()
@torch.no_grad()
def measure(
    model: CharGPT, fmt: FloatFormat, *, sequences: int = 32, tokens: int = 127, seed: int = 0
) -> Mismatch:
    """Sample with one engine, score with the other, both in a format, emulated as in `engines`.

    32 sequences of 127 tokens take about half a second; each seed draws others.
    Example: measure(small_policy(), BF16).mean → 0.003, and 0.0004 with FP16
    """
    ids, sampled = sample(model, fmt, sequences, tokens, seed)
    return Mismatch(fmt.name, log_probs(Policy(model, fmt), ids) - sampled)


@one_thread()
@torch.no_grad()
def measure_with_torch(
    model: CharGPT, dtype: torch.dtype, *, sequences: int = 8, tokens: int = 127
) -> Mismatch:
    """Score the same tokens twice with this machine's kernels: under autocast, and with the whole
    model cast to the dtype.

    Only the sampling is emulated. Many RL libraries train in the first way; inference engines run
    in the second, where norms, softmax and the sums between blocks are rounded, too.
    dtype: torch.bfloat16, torch.float16, or torch.float32, in which both are the same
    """
    fmt = find_format(dtype)
    ids, _ = sample(model, fmt, sequences, tokens, seed=0)
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        trained = _chosen(model(ids[:, :-1]), ids)
    inferred = _chosen(copy.deepcopy(model).to(dtype)(ids[:, :-1]), ids)
    return Mismatch(fmt.name, trained - inferred)


def _chosen(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.double().log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
