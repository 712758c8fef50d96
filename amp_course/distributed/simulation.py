"""Simulate ranks in one process: each has its own layers, optimizer and `torch.amp.GradScaler`.

The forward and backward passes under fp16 autocast, the overflow, the scalers and the optimizers
are real. The collectives are simulated: a loop adds up what an all-reduce would. `agreement` has
real processes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from amp_course.kit.threads import one_thread

Agreement = Literal["nothing", "gradients all-reduced", "found_inf agreed"]
AGREEMENTS: tuple[Agreement, ...] = get_args(Agreement)
INIT_SCALE = 2.0**10
_INPUTS, _HIDDEN, _CLASSES, _BATCH, _RATE = 16, 16, 4, 16, 0.1
_OUTLIER = 100_000.0  # finite in fp32 and bf16; fp16 rounds it to inf


@dataclass(frozen=True)
class RankRun:
    """What each rank did at each step: `scales[rank][step]`, and so on.

    scales:     the loss scale in the step
    overflowed: whether the rank's own backward pass left an inf or NaN in its gradients, before any
                agreement
    skipped:    whether the rank's optimizer did not step
    distances:  after the step, the largest absolute difference between the rank's replicated
                weights and rank 0's
    norms:      `norms[rank]`, the layer norm's weights and then biases after the last step
    """

    agreement: Agreement
    scales: tuple[tuple[float, ...], ...]
    overflowed: tuple[tuple[bool, ...], ...]
    skipped: tuple[tuple[bool, ...], ...]
    distances: tuple[tuple[float, ...], ...]
    norms: tuple[tuple[float, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.scales)

    @property
    def steps(self) -> int:
        return len(self.scales[0])

    def groups(self) -> list[list[int]]:
        """Return the ranks, grouped by equal scales, skips and distances: [[0, 2, 3], [1]]."""
        found: dict[Any, list[int]] = {}
        histories = zip(self.scales, self.skipped, self.distances, strict=True)
        for rank, history in enumerate(histories):
            found.setdefault(history, []).append(rank)
        return list(found.values())

    def first_split(self) -> int | None:
        """Return the first step, from 0, in which only some ranks skipped, if any."""
        by_step = enumerate(zip(*self.skipped, strict=True))
        return next((step for step, skips in by_step if len(set(skips)) > 1), None)


def simulate(
    ranks: int,
    agreement: Agreement,
    overflow_at: Mapping[int, Collection[int]],
    steps: int = 30,
    growth_interval: int | None = 8,
) -> RankRun:
    """Train a small classifier of random data on simulated ranks; return what each rank's scaler
    did.

    ranks:           1, 2, 4, 8 or 16: they share 16 hidden units, or a batch of 16
    agreement:       "nothing" or "found_inf agreed": tensor parallelism, where each rank has some
                     of the hidden units and all have the same batch; "gradients all-reduced": DDP,
                     where each rank has the whole model and a part of the batch
    overflow_at:     step, from 0 → ranks on which a hidden unit has an outlier of 100,000 in that
                     step: inf in fp16
    growth_interval: as in GradScaler; None for never

    tanh turns the inf into 1, so the forward pass stays finite. In the backward pass, 0 × inf is
    NaN in the gradient of that unit's `gain`. In tensor parallelism only its rank has this
    gradient; in DDP the all-reduce gives the NaN to every rank.

    In tensor parallelism the layer norm before the hidden units is replicated. The forward pass
    adds up the ranks' logits; the backward pass adds up the gradients that the ranks' units send
    back to the norm, each multiplied by its rank's loss scale. If the scales differ, so do the
    units of these terms, and each rank unscales the sum by its own scale: the norms get different
    gradients.

    Example: simulate(2, "nothing", {3: [1]}, steps=5).scales → 1024 at every step on rank 0, 512
             from step 4 on rank 1
    Source: fairseq2#1374; Shoeybi et al., "Megatron-LM", 2019, section 3, for the cut layers.
    """
    replicas = agreement == "gradients all-reduced"
    hidden = [slice(None)] * ranks
    if not replicas:
        width = _HIDDEN // ranks
        hidden = [slice(n * width, (n + 1) * width) for n in range(ranks)]
    team = [_Rank(_Layers(part), growth_interval) for part in hidden]
    backward = _backward_replicas if replicas else _backward_parts
    with one_thread():
        for step, (x, y) in enumerate(_batches(steps)):
            outliers = [
                _OUTLIER if rank in overflow_at.get(step, ()) else 0.0 for rank in range(ranks)
            ]
            backward(team, x, y, outliers)
            for rank in team:
                rank.scaler.unscale_(rank.optimizer)
            if agreement == "found_inf agreed":
                _agree(team)
            for rank in team:
                rank.step()
            replicated = [_flat(rank.layers if replicas else rank.layers.norm) for rank in team]
            for rank, weights in zip(team, replicated, strict=True):
                rank.distances.append((weights - replicated[0]).abs().max().item())
    return RankRun(
        agreement,
        scales=tuple(tuple(rank.scales) for rank in team),
        overflowed=tuple(tuple(rank.overflowed) for rank in team),
        skipped=tuple(tuple(rank.skipped) for rank in team),
        distances=tuple(tuple(rank.distances) for rank in team),
        norms=tuple(tuple(_flat(rank.layers.norm).tolist()) for rank in team),
    )


def _batches(steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Draw inputs (batch, inputs); a random linear map chooses the classes (batch)."""
    draw = torch.Generator().manual_seed(1)
    teacher = torch.randn(_INPUTS, _CLASSES, generator=draw)
    for _ in range(steps):
        x = torch.randn(_BATCH, _INPUTS, generator=draw)
        yield x, (x @ teacher).argmax(1)


class _Layers(nn.Module):
    """A layer norm, and the hidden units in `part`."""

    def __init__(self, part: slice) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        into = torch.randn(_HIDDEN, _INPUTS, generator=draw) / _INPUTS**0.5
        out = torch.randn(_CLASSES, _HIDDEN, generator=draw) / _HIDDEN**0.5
        self.norm = nn.LayerNorm(_INPUTS)
        self.into = nn.Parameter(into[part].clone())
        self.gain = nn.Parameter(torch.ones(len(self.into)))
        self.out = nn.Parameter(out[:, part].clone())

    def logits(self, normed: Tensor, outlier: float) -> Tensor:
        """Return these units' part of the logits, in fp32,
        so that their sum over the ranks cannot overflow.
        """
        units = linear(normed, self.into)
        if outlier:
            units[0, 0] += outlier
        return linear(torch.tanh(self.gain * units), self.out).float()


@dataclass
class _Rank:
    """One rank: what it trains with, and its record so far."""

    layers: _Layers
    growth_interval: int | None
    scales: list[float] = field(default_factory=list)
    overflowed: list[bool] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=_RATE)
        self.optimizer.register_step_post_hook(self._stepped)
        never = 2**31 - 1
        self.scaler = torch.amp.GradScaler(
            "cpu", INIT_SCALE, growth_interval=self.growth_interval or never
        )

    def note_overflow(self) -> None:
        """Record whether this rank's gradients have an inf or NaN."""
        gradients = _gradients(self.layers.parameters())
        self.overflowed.append(not all(bool(gradient.isfinite().all()) for gradient in gradients))

    def step(self) -> None:
        """Step or skip, as the scaler decides, and update the scale."""
        self.scales.append(self.scaler.get_scale())
        self.skipped.append(True)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def _stepped(self, *_: Any) -> None:
        self.skipped[-1] = False


def _backward_parts(team: Sequence[_Rank], x: Tensor, y: Tensor, outliers: Sequence[float]) -> None:
    """Run a step's forward and backward pass in tensor parallelism, with its two all-reduces."""
    normed, inputs, parts = [], [], []
    with torch.autocast("cpu", dtype=torch.float16):
        for rank, outlier in zip(team, outliers, strict=True):
            normed.append(rank.layers.norm(x))
            inputs.append(normed[-1].detach().requires_grad_())
            parts.append(rank.layers.logits(inputs[-1], outlier))
    # the all-reduce of the forward pass
    logits = torch.stack([part.detach() for part in parts]).sum(0)
    outputs = [logits.clone().requires_grad_() for _ in team]
    torch.autograd.backward(
        [rank.scaler.scale(cross_entropy(out, y)) for rank, out in zip(team, outputs, strict=True)]
    )
    torch.autograd.backward(parts, _gradients(outputs))
    sent_back = torch.stack(_gradients(inputs)).sum(0)  # the all-reduce of the backward pass
    torch.autograd.backward(normed, [sent_back] * len(team))
    for rank in team:
        rank.note_overflow()


def _backward_replicas(
    team: Sequence[_Rank], x: Tensor, y: Tensor, outliers: Sequence[float]
) -> None:
    """Run a step's forward and backward pass in DDP, each rank on its own part of the batch;
    average the gradients.
    """
    losses = []
    for rank, outlier, mine, targets in zip(
        team, outliers, x.chunk(len(team)), y.chunk(len(team)), strict=True
    ):
        with torch.autocast("cpu", dtype=torch.float16):
            logits = rank.layers.logits(rank.layers.norm(mine), outlier)
        losses.append(rank.scaler.scale(cross_entropy(logits, targets)))
    torch.autograd.backward(losses)
    for rank in team:
        rank.note_overflow()
    for same in zip(*(rank.layers.parameters() for rank in team), strict=True):
        mean = torch.stack(_gradients(same)).mean(0)
        for weight in same:
            weight.grad = mean.clone()


def _flat(module: nn.Module) -> Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def _gradients(tensors: Iterable[Tensor]) -> list[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]


def _agree(team: Sequence[_Rank]) -> None:
    """All-reduce the scalers' found_inf by MAX, as `AgreedGradScaler` does, so that all of them
    decide alike.
    """
    by_device = [rank.scaler._found_inf_per_device(rank.optimizer) for rank in team]
    flags = [flag for by_rank in by_device for flag in by_rank.values()]
    largest = torch.stack(flags).amax()
    for flag in flags:
        flag.copy_(largest)
