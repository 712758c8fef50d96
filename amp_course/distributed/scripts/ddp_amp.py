"""Train on the digits with DDP and AMP; resumes from its checkpoint. On CPUs (gloo) or GPUs (NCCL), with any number of ranks:

torchrun --standalone --nproc-per-node 2 ddp_amp.py --dtype fp16 --checkpoint digits.pt
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["fp16", "bf16", "fp32"], default="fp16")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches for one step")
    parser.add_argument("--checkpoint", default="", help="a file on a disk that all ranks see")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)  # before the group: NCCL uses the current device
    dist.init_process_group("nccl" if gpu else "gloo")  # finds the others by the variables that torchrun has set
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(net)  # sends rank 0's weights to all ranks, and averages their gradients
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    low = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}[options.dtype]
    scaler = torch.amp.GradScaler(device.type, enabled=low == torch.float16)
    inputs, targets = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(targets))
    sampler = DistributedSampler(data)  # another part for each rank, all of the same size
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    begin = 0
    parts = {"model": net, "optimizer": optimizer, "scaler": scaler}
    if os.path.exists(options.checkpoint):  # every rank resumes, the scaler too
        saved = torch.load(options.checkpoint, map_location=device)
        begin = saved["epoch"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for epoch in range(begin, options.epochs):
        sampler.set_epoch(epoch)  # without it, every epoch has the same order
        sums = torch.zeros(2, device=device)
        for number, (x, y) in enumerate(loader):
            first = number - number % options.accumulate
            group = min(options.accumulate, len(loader) - first)  # the last one may be short
            last = number == first + group - 1
            with contextlib.nullcontext() if last else model.no_sync():  # the gradients travel once per step
                with torch.autocast(device.type, dtype=low or torch.bfloat16, enabled=low is not None):
                    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
                scaler.scale(loss / group).backward()
            sums += torch.stack([loss.detach() * len(y), loss.new_tensor(len(y))])
            if last:
                scaler.unscale_(optimizer)  # the gradients are averaged by now: all ranks see the same ones, inf or not
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        dist.all_reduce(sums)  # every rank calls it, one prints
        if rank == 0:
            print(f"epoch {epoch + 1}: mean loss {sums[0] / sums[1]:.4f}, loss scale {scaler.get_scale():g}")
        if rank == 0 and options.checkpoint:
            states = {name: part.state_dict() for name, part in parts.items()}
            torch.save(states | {"epoch": epoch + 1}, options.checkpoint + ".new")
            os.replace(options.checkpoint + ".new", options.checkpoint)  # a crash leaves the old one whole
    total = sum(weight.detach().double().sum().item() for weight in net.parameters())
    print(f"rank {rank}: sum of the weights {total:.10f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
