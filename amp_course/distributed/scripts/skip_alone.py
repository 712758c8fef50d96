"""A training step with a fault that hangs: rank 0 skips a batch whose loss is not finite, and tells
nobody.

torchrun --standalone --nproc-per-node 2 skip_alone.py
"""

import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    # By default a collective waits for 30 minutes over gloo, 10 over NCCL. Five seconds are enough
    # here.
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 1))
    for step in range(1, 4):
        x = torch.randn(4, 8)
        if step == 2 and dist.get_rank() == 0:
            x[0, 0] = float("nan")  # a broken picture in rank 0's batch
        loss = model(x).square().mean()
        if not loss.isfinite():
            print(f"rank {dist.get_rank()} skips step {step}", flush=True)
            # the fault: DDP's all-reduce is in the backward pass, which the other rank runs
            continue
        print(f"rank {dist.get_rank()} runs the backward pass of step {step}", flush=True)
        loss.backward()
    print(f"rank {dist.get_rank()} waits at the barrier", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
