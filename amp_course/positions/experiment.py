"""Train a one-layer transformer that has to know its place: repeat the token three back.

The tokens are random, so only position says which one to repeat. The model sees positions only
through RoPE; its position ids are an input, in float32 or rounded to a low format.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.positions.rope import Rope, turned

VOCAB, BACK, LENGTH = 16, 3, 768
STEPS, BATCH, RATE = 100, 2, 1e-2
RIGHT = Rope(64)


class Repeater(nn.Module):
    """One attention layer with RoPE: tokens (batch, n), ids (n,) → logits (batch, n, VOCAB).

    Queries and keys start with zero weights and random biases: at first attention depends on
    position alone, and the model learns its task in seconds.
    """

    def __init__(self, rope: Rope = RIGHT, width: int = 64) -> None:
        super().__init__()
        self.rope = rope
        head_size = rope.head_size
        self.tokens = nn.Embedding(VOCAB, width)
        self.query, self.key = nn.Linear(width, head_size), nn.Linear(width, head_size)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.head = nn.Linear(width, VOCAB)
        for layer in (self.query, self.key):
            nn.init.zeros_(layer.weight)
            nn.init.normal_(layer.bias)

    def forward(self, tokens: Tensor, position_ids: Tensor) -> Tensor:
        """Return logits (batch, n, VOCAB)."""
        x = self.tokens(tokens)
        angles = self.rope.angles(position_ids)  # in float32, whatever the ids were before
        cos, sin = angles.cos(), angles.sin()
        query, key = turned(self.query(x), cos, sin), turned(self.key(x), cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, self.value(x), is_causal=True)
        return self.head(x + self.out(mixed))


@dataclass(frozen=True)
class Trained:
    """A trained model; `hits` (n,) is its accuracy at each position, NaN at the first BACK."""

    model: Repeater
    losses: tuple[float, ...]
    hits: Tensor

    def accuracy(self, start: int, end: int) -> float:
        """Return the mean accuracy at the positions start … end−1, from 0 to 1."""
        return self.hits[max(start, BACK) : end].mean().item()


def draw_tokens(batch: int, generator: torch.Generator, length: int = LENGTH) -> Tensor:
    """Return random tokens, (batch, length) int64."""
    return torch.randint(VOCAB, (batch, length), generator=generator)


def repeat_loss(model: nn.Module, tokens: Tensor, position_ids: Tensor) -> Tensor:
    """Return the mean cross-entropy of predicting the token BACK before, where there is one."""
    logits = model(tokens, position_ids)[:, BACK:]
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, :-BACK].flatten())


def train_repeater(
    position_ids: Tensor,
    seed: int,
    rope: Rope = RIGHT,
    autocast: torch.dtype | None = None,
    steps: int = STEPS,
) -> Trained:
    """Train a Repeater on position ids (n,) and measure it on 16 fresh sequences, in seconds.

    The same seed gives the same first weights and tokens, whatever else differs. `autocast` is the
    dtype of a region around forward pass and loss, None for float32.
    Example: train_repeater(torch.arange(768).bfloat16(), seed=0).accuracy(512, 768) → about 0.28
    """
    device = position_ids.device
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Repeater(rope).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, RATE, total_steps=steps, pct_start=0.1
    )
    losses = []
    for _ in range(steps):
        tokens = draw_tokens(BATCH, generator, len(position_ids)).to(device)
        with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
            loss = repeat_loss(model, tokens, position_ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    with torch.autocast(device.type, dtype=autocast, enabled=autocast is not None):
        hits = accuracy_by_position(model, position_ids, generator)
    return Trained(model, tuple(torch.stack(losses).tolist()), hits)


@torch.no_grad()
def accuracy_by_position(
    model: nn.Module, position_ids: Tensor, generator: torch.Generator
) -> Tensor:
    """Return the accuracy on 16 sequences by position, (n,) on the CPU; NaN at the first BACK."""
    tokens = draw_tokens(16, generator, len(position_ids)).to(position_ids.device)
    right = model(tokens, position_ids)[:, BACK:].argmax(dim=-1) == tokens[:, :-BACK]
    return F.pad(right.float().mean(dim=0).cpu(), (BACK, 0), value=float("nan"))


def in_bins(hits: Tensor, width: int) -> list[tuple[float, float]]:
    """Return each bin's middle position and mean: a width of 32 → [(16, 0.99), (48, 1.0), …]."""
    return [
        (width * (number + 0.5), part.nanmean().item())
        for number, part in enumerate(hits.split(width))
    ]
