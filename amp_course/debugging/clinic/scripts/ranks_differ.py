"""Resumed from a checkpoint, the two ranks of a DDP training no longer have the same weights.
After pytorch/pytorch#136009.
"""

import socket

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel


def resume(net, batches, checkpoint):
    """Go on training in fp16 under DDP from a checkpoint, which rank 0 has;
    return the loss scale after each update.
    """
    scaler = torch.amp.GradScaler("cpu")
    if dist.get_rank() == 0:
        net.load_state_dict(checkpoint["model"])
        scaler.load_state_dict(checkpoint["scaler"])
    model = DistributedDataParallel(net)  # sends the weights of rank 0 to all ranks
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scales = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def run(rank, port):
    """Be one of the two ranks."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(rank)
    net, checkpoint = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), None
    if rank == 0:
        scaler = torch.amp.GradScaler("cpu", init_scale=8192.0, growth_interval=500)
        checkpoint = {"model": net.state_dict(), "scaler": scaler.state_dict()}
    sums = []  # of all weights, before each batch
    net.register_forward_pre_hook(
        lambda net, _: sums.append(sum(p.sum().item() for p in net.parameters()))
    )
    inputs = torch.randn(16, 8)
    scales = resume(net, [(inputs, inputs[:, :4].argmax(dim=1))] * 21, checkpoint)
    everybody = [None, None]
    dist.all_gather_object(
        everybody, [(scales[step], round(sums[step], 4)) for step in range(0, 21, 5)]
    )
    if rank == 0:
        for number, ((scale0, sum0), (scale1, sum1)) in enumerate(zip(*everybody, strict=True)):
            print(
                f"step {5 * number}: loss scales {scale0:g} and {scale1:g}, sums of the weights "
                f"{sum0} and {sum1}"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(run, (port,), nprocs=2)
