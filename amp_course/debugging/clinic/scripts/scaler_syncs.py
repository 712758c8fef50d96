"""The GPU is idle for a moment in every step, although the loop has no `.item()` any more.
After pytorch/pytorch#80167.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def train(model, batches, scaler):
    """Train in fp16; return the losses, which stay tensors until the training is over."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
    return torch.stack(losses)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    inputs = torch.randn(32, 16)
    batches = [(inputs, inputs[:, :4].argmax(dim=1))] * 20
    with torch.profiler.profile() as profile:
        losses = train(model, batches, torch.amp.GradScaler("cpu"))
    counts = {event.key: event.count for event in profile.key_averages()}
    print(f"loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
    print(
        f"{len(batches)} steps, {counts.get('aten::_local_scalar_dense', 0)} times "
        f"aten::_local_scalar_dense"
    )
