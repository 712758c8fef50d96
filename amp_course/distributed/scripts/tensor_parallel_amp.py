"""Train two layers that are cut by hand over all ranks (tensor parallelism), in fp16, with a scaler
that agrees on skips:

torchrun --standalone --nproc-per-node 2 tensor_parallel_amp.py
"""

import os
from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn

# a GradScaler with an all-reduce; copy it, too
from amp_course.distributed.agreement.agreed import AgreedGradScaler


def add_up(x: Tensor) -> Tensor:
    """Return the sum of the ranks' tensors, on every rank."""
    dist.all_reduce(x := x.clone(memory_format=torch.contiguous_format))
    return x


# forward: the sum of the parts; backward: each gets the whole gradient
class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return add_up(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


# a norm that every rank has, and two layers of which each rank has some units
class ParallelMLP(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        # equal on all ranks: one seed
        into, out = (nn.Linear(inputs, hidden), nn.Linear(hidden, outputs))
        units = torch.arange(hidden).chunk(dist.get_world_size())[dist.get_rank()]
        self.into_weight = nn.Parameter(into.weight.detach()[units])
        self.out_weight = nn.Parameter(out.weight.detach()[:, units])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        if x.requires_grad:
            x.register_hook(add_up)  # backward: what the ranks' parts say about x is added up
        units = torch.relu(nn.functional.linear(x, self.into_weight))
        # fp16 sums could overflow
        return SumOverRanks.apply(nn.functional.linear(units, self.out_weight).float())


def main() -> None:
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)
    model = ParallelMLP(64, 128, 10).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = AgreedGradScaler(device.type, growth_interval=20)
    inputs, targets = (torch.tensor(part).to(device) for part in load_digits(return_X_y=True))
    for _ in range(150):
        # one seed: all ranks draw the same batch
        rows = torch.randint(len(targets), (128,)).to(device)
        with torch.autocast(device.type, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(inputs[rows].float() / 16), targets[rows])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    total = model.norm.weight.detach().double().sum()  # both ranks have these weights
    print(
        f"rank {dist.get_rank()}: loss {loss:.4f}, loss scale {scaler.get_scale():g}, weights "
        f"{total:.10f}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
