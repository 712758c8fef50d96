"""After a good start the loss scale halves in every step, and the loss stands still.
After PaddlePaddle/Paddle#67895.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def train(model, batches, optimizer, scaler):
    """Train in fp16 for one epoch; return the losses."""
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", growth_interval=8)
    inputs = torch.randn(32, 16)
    batches = [(inputs, inputs[:, :4].argmax(dim=1))] * 8
    for epoch in range(1, 11):
        losses = train(model, batches, optimizer, scaler)
        print(f"epoch {epoch}: loss {losses[-1]:.4f}, loss scale {scaler.get_scale():g}")
