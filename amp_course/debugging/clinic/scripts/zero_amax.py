"""The loss is NaN as soon as a batch holds padding, and only with float8. After pytorch/ao#3356."""

import torch
from torch import nn
from torch.nn.functional import linear, mse_loss


def through_float8(x):
    """Return each row of x (rows, columns) as float8 holds it with a scale of its own;
    the gradient passes straight through.
    """
    amax = x.abs().amax(dim=-1, keepdim=True)
    scale = 448 / amax
    stored = (x * scale).to(torch.float8_e4m3fn)
    back = stored.to(torch.float32) / scale
    return x + (back - x).detach()


def train(layer, batches):
    """Train a linear layer on inputs and weights in float8; return the losses."""
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    losses = []
    for inputs, targets in batches:
        outputs = linear(through_float8(inputs), through_float8(layer.weight), layer.bias)
        loss = mse_loss(outputs, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    layer = nn.Linear(8, 4)
    inputs = torch.randn(6, 8)
    targets = inputs[:, :4] - inputs[:, 4:]
    for name, length in (("6 tokens", 6), ("5 tokens and 1 of padding", 5)):
        padded = inputs * (torch.arange(6) < length)[:, None]
        losses = train(layer, [(padded, targets)] * 30)
        print(f"{name}: loss {losses[0]:.3f} at first, {losses[-1]:.3f} at last")
