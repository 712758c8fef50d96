# fault: ranks-with-different-scales
"""Two processes share the optimizer: each averages all gradients, steps its own layer,
and sends that out.
"""

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())


def share(layers):
    with torch.no_grad():
        for owner, layer in enumerate(layers):
            for p in layer.parameters():
                dist.broadcast(p, src=owner)


def work(rank, port):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    layers = [model[0], model[2]]
    share(layers)
    optimizer = torch.optim.SGD(layers[rank].parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    rule = torch.randn(16, 1)
    torch.manual_seed(1 + rank)
    for step in range(40):
        x = 20 * torch.randn(32, 16)
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = model(x)
        loss = nn.functional.smooth_l1_loss(prediction.float(), x @ rule)
        model.zero_grad()
        scaler.scale(loss).backward()
        average_gradients(model)
        scaler.step(optimizer)
        scaler.update()
        share(layers)
        if step % 5 == 4:
            print(
                f"rank {rank} step {step} loss {loss.item():.3f} scale {scaler.get_scale():g}",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as s:
        s.bind(("", 0))
        port = s.getsockname()[1]
    mp.spawn(work, args=(port,), nprocs=2)
