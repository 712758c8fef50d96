"""Training stops in its first step at NaN gradients, although the data and the loss are finite.
After pytorch-lightning#9799.
"""

import torch
from torch import nn
from torch.nn.functional import mse_loss


def train(model, batches, scaler):
    """Train in fp16, on the lookout for NaN; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    with torch.autograd.detect_anomaly():
        for inputs, targets in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = mse_loss(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 1))
    inputs = torch.randn(8, 8)
    targets = 20 + inputs[:, :1]
    print(f"largest input {inputs.abs().max():.1f}, largest target {targets.max():.1f}")
    print(f"loss before the first step {mse_loss(model(inputs), targets):.1f}")
    for number, loss in enumerate(
        train(model, [(inputs, targets)] * 40, torch.amp.GradScaler("cpu")), 1
    ):
        if number % 10 == 0:
            print(f"step {number}: loss {loss:.2f}")
