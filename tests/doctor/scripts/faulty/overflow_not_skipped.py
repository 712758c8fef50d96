# fault: overflow-not-skipped
"""A static loss scale by hand."""

import torch
from torch import nn

LOSS_SCALE = 2.0**12


def scaled_backward(loss, params):
    (loss * LOSS_SCALE).backward()
    for p in params:
        p.grad.div_(LOSS_SCALE)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    weights = torch.randn(8, 1)
    for step in range(40):
        x = torch.randn(32, 8)
        if step % 12 == 11:
            x[:4] *= 20  # a few samples of another instrument
        with torch.autocast("cpu", dtype=torch.float16):
            prediction = model(x)
        loss = nn.functional.mse_loss(prediction.float(), x @ weights)
        optimizer.zero_grad()
        scaled_backward(loss, model.parameters())
        optimizer.step()
        if step % 4 == 0:
            print(step, loss.item())


if __name__ == "__main__":
    main()
