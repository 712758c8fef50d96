"""The training loss is fine, and in evaluation mode the model returns NaN.
After pytorch/pytorch#115500 and #96798.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def train(model, batches):
    """Train in fp16; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    inputs = torch.randn(32, 8)
    targets = inputs[:, :4].argmax(dim=1)
    batches = [(inputs, targets)] * 40
    batches[12] = (inputs * 1e5, targets)
    for number, loss in enumerate(train(model, batches), 1):
        if number % 10 == 0:
            print(f"step {number}: loss {loss:.4f}")
    model.eval()
    print(f"evaluation: loss {cross_entropy(model(inputs), targets).item():.4f}")
