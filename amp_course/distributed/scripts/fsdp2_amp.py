"""Train on the digits with FSDP2 in mixed precision; any number of ranks can resume:

torchrun --standalone --nproc-per-node 2 fsdp2_amp.py --dtype bf16 --checkpoint digits_sharded
"""

import argparse
import gc
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", choices=["fp16", "bf16", "fp32"], default="bf16")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--checkpoint", default="", help="a folder on a disk that all ranks see")
    options = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device(f"cuda:{os.environ['LOCAL_RANK']}" if gpu else "cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    torch.manual_seed(0)  # each rank keeps a part of its own weights, so these have to be equal
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    low = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}[options.dtype]
    # Stored and stepped in fp32, gathered and computed in `low`, reduced in fp32. There is no
    # autocast region.
    fp32 = torch.float32
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=fp32, output_dtype=fp32)
    for layer in (model[0], model[2], model):  # the inner ones first: each is gathered on its own
        fully_shard(layer, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)  # of the shards, so after the loop
    # The shards are DTensors, so the scaler agrees over the ranks.
    scaler = torch.amp.GradScaler(device.type, enabled=low == torch.float16)
    inputs, targets = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(inputs / 16, dtype=torch.float32), torch.tensor(targets))
    # equal sizes on all ranks, so their mean is the samples' mean
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler)

    def states():
        weights, state = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": state, "scaler": scaler.state_dict(), "epoch": epoch}

    epoch = 0
    # written last
    complete = options.checkpoint and sorted(Path(options.checkpoint).glob("epoch-*/.metadata"))
    if complete:
        saved = states()
        # each rank reads its part, into these tensors
        dcp.load(saved, checkpoint_id=complete[-1].parent)
        weights, state = saved["model"], saved["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        scaler.load_state_dict(saved["scaler"])
        epoch = saved["epoch"]
    while epoch < options.epochs:
        sampler.set_epoch(epoch)
        for x, y in loader:
            scaler.scale(nn.functional.cross_entropy(model(x.to(device)), y.to(device))).backward()
            scaler.unscale_(optimizer)
            # of all shards: it adds up over the ranks
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        epoch, last = epoch + 1, norm.full_tensor()  # a collective, so on every rank
        if dist.get_rank() == 0:
            scale = scaler.get_scale()
            print(f"epoch {epoch}: last gradient norm {last:.3f}, loss scale {scale:g}")
        if options.checkpoint:  # every rank writes its own part
            dcp.save(states(), checkpoint_id=Path(options.checkpoint, f"epoch-{epoch:04}"))
    total = sum(one.detach().double().full_tensor().sum().item() for one in model.parameters())
    print(f"rank {dist.get_rank()}: sum of the weights {total:.10f}", flush=True)
    # else gloo's threads now and then outlive Python, and abort the process (torch 2.13)
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
