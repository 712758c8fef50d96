"""The loss goes down at a snail's pace, whatever the learning rate.
After pytorch/examples#1196 and Pytorch-UNet#468.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def train(model, batches):
    """Train in fp16, with gradients clipped to a norm of 1; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    inputs = torch.randn(32, 16)
    batches = [(inputs, inputs[:, :4].argmax(dim=1))] * 40
    for number, loss in enumerate(train(model, batches), 1):
        if number % 10 == 0:
            print(f"step {number}: loss {loss:.4f}")
