"""A block split over two ranks, whose gradients are clipped by the norm of the whole: after
DeepSpeed #1801.

The layer norm is on both ranks. Each must count once in the norm, and be clipped on both; with
--bug, the choice made for the norm also decides what is clipped, as BF16_Optimizer did.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn


class Reduced(torch.autograd.Function):
    """The sum over the ranks going forward; going backward, each rank's own."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad


class Copied(torch.autograd.Function):
    """The same on each rank going forward; going backward, the sum."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class Block(nn.Module):
    """A norm, then two layers of which this rank holds its share of the hidden units."""

    def __init__(self, width, hidden, ranks):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, hidden // ranks)
        self.narrow = nn.Linear(hidden // ranks, width, bias=False)
        for layer in (self.wide, self.narrow):
            layer.weight.is_part = True
        self.wide.bias.is_part = True

    def forward(self, x):
        hidden = nn.functional.gelu(self.wide(Copied.apply(self.norm(x))))
        return x + Reduced.apply(self.narrow(hidden))


def clip(parameters, limit, rank, bug):
    """Cut gradients to a norm over all ranks, and return what it was."""
    counted = [p.grad for p in parameters if rank == 0 or hasattr(p, "is_part")]
    squares = sum(grad.square().sum() for grad in counted)
    dist.all_reduce(squares)
    norm = squares.sqrt()
    clipped = counted if bug else [p.grad for p in parameters]
    for grad in clipped:
        grad.mul_(limit / norm.clamp_min(limit))
    return norm


def main():
    """Train for sixty steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bug", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(1)
    head = nn.Linear(16, 4)
    torch.manual_seed(10 + rank)
    model = nn.Sequential(Block(16, 64, ranks), Block(16, 64, ranks), head)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)

    data = torch.Generator().manual_seed(0)
    x, y = torch.randn(512, 16, generator=data), torch.randint(0, 4, (512,), generator=data)
    for step in range(60):
        chosen = torch.randint(0, 512, (32,), generator=data)
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        optimizer.zero_grad()
        loss.backward()
        norm = clip(parameters, 0.1, rank, arguments.bug)
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"{step}: loss {loss.item():.3f}, norm {norm.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
