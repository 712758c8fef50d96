"""A model that is sharded after its optimizer was made: after Hugging Face Accelerate's #2665 and
#3256.

FSDP with use_orig_params=False puts a flat weight in the place of the others, which the optimizer
still holds; with
--fully-shard, FSDP2 puts distributed weights there. With --fixed the optimizer is made after it.
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard


def prepare(model, second):
    """Shard a model, by FSDP2 or by FSDP."""
    if second:
        return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=False)


def main():
    """Train for sixty steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fully-shard", action="store_true")
    parser.add_argument("--fixed", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 4))
    if arguments.fixed:
        model = prepare(model, arguments.fully_shard)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        model = prepare(model, arguments.fully_shard)

    data = torch.Generator().manual_seed(dist.get_rank())
    x, y = torch.randn(512, 16, generator=data), torch.randint(0, 4, (512,), generator=data)
    for step in range(60):
        chosen = torch.randint(0, 512, (32,), generator=data)
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0 and step % 20 == 0:
            print(f"{step}: loss {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
