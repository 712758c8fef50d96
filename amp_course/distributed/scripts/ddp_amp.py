"""Train on the digits with DDP and AMP, on CPUs (gloo) or GPUs (NCCL); resumes from its checkpoint:

torchrun --standalone --nproc-per-node 2 ddp_amp.py --dtype fp16 --checkpoint digits.pt
"""

import argparse
import contextlib
import itertools
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def take_step(model, group, optimizer, scaler, dtype):
    """Take one step with the mean gradient over the samples of all micro-batches of all ranks."""
    device = next(model.parameters()).device
    loss_sum = torch.zeros((), device=device)
    samples = torch.tensor(sum(len(y) for _, y in group), device=device)
    dist.all_reduce(samples)  # known before the first backward pass, which divides by them
    for number, (x, y) in enumerate(group, 1):
        last = number == len(group)
        with contextlib.nullcontext() if last else model.no_sync():  # gradients travel once
            with torch.autocast(device.type, dtype=dtype, enabled=dtype != torch.float32):
                loss = F.cross_entropy(model(x.to(device)), y.to(device), reduction="sum")
            scaler.scale(loss * dist.get_world_size() / samples).backward()  # DDP divides by it
        loss_sum += loss.detach()
    scaler.unscale_(optimizer)  # DDP has averaged: all ranks see the same, inf or not
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return loss_sum, samples


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["fp16", "bf16", "fp32"], default="fp16")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--accumulate", type=int, default=2, help="micro-batches for one step")
    parser.add_argument("--checkpoint", default="", help="a file on a disk that all ranks see")
    options = parser.parse_args()
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[options.dtype]
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)  # before the group: NCCL uses the current device
    dist.init_process_group("nccl" if gpu else "gloo")  # finds the others by torchrun's variables
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    model = DistributedDataParallel(net)  # sends rank 0's weights, and averages gradients
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=dtype == torch.float16)
    inputs, targets = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(targets))
    sampler = DistributedSampler(data)  # another part for each rank, all of the same size
    loader = DataLoader(data, batch_size=32, sampler=sampler)
    begin, parts = 0, {"model": net, "optimizer": optimizer, "scaler": scaler}
    if os.path.exists(options.checkpoint):  # every rank resumes, the scaler too
        saved = torch.load(options.checkpoint, map_location=device)
        begin = saved["epoch"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    for epoch in range(begin, options.epochs):
        sampler.set_epoch(epoch)  # without it, every epoch has the same order
        batches, loss_sum, seen = iter(loader), torch.zeros((), device=device), 0
        while group := list(itertools.islice(batches, options.accumulate)):  # the last may be short
            loss, samples = take_step(model, group, optimizer, scaler, dtype)
            loss_sum, seen = loss_sum + loss, seen + samples
        dist.all_reduce(loss_sum)  # every rank calls it, one prints
        if dist.get_rank() == 0:
            mean, scale = loss_sum / seen, scaler.get_scale()
            print(f"epoch {epoch + 1}: mean loss {mean:.4f}, loss scale {scale:g}")
            if options.checkpoint:
                states = {name: part.state_dict() for name, part in parts.items()}
                torch.save(states | {"epoch": epoch + 1}, options.checkpoint + ".new")
                os.replace(options.checkpoint + ".new", options.checkpoint)  # never half a file
    total = sum(weight.detach().double().sum().item() for weight in net.parameters())
    print(f"rank {dist.get_rank()}: sum of the weights {total:.10f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
