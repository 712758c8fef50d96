"""Two ranks start with one loss scale, and after some epochs each has its own.
After pytorch/pytorch#90057.
"""

import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def train(model, epochs, optimizer, scaler):
    """Train in fp16 under DDP. `epochs` holds a list of batches for each epoch;
    its length may differ between ranks.
    """
    for batches in epochs:
        with model.join():  # a rank that is done answers the all-reduces of the others
            for inputs, targets in batches:
                with torch.autocast("cpu", dtype=torch.float16):
                    loss = cross_entropy(model(inputs), targets)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()


def run(rank, port):
    """Be one of the two ranks."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=15)
    sums = []  # of all weights, before each batch of an epoch
    net.register_forward_pre_hook(
        lambda net, _: sums.append(sum(p.sum().item() for p in net.parameters()))
    )
    inputs = torch.randn(16, 8)
    batches = [(inputs, inputs[:, :4].argmax(dim=1))] * (10 if rank == 0 else 8)
    for epoch in range(1, 8):
        sums.clear()
        train(model, [batches], optimizer, scaler)
        everybody = [None, None]
        dist.all_gather_object(everybody, (scaler.get_scale(), round(sums[7], 4)))
        if rank == 0:
            (scale0, sum0), (scale1, sum1) = everybody
            print(
                f"epoch {epoch}: loss scales {scale0:g} and {scale1:g}, sums of the weights {sum0} "
                f"and {sum1}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (port,), nprocs=2)
