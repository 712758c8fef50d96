"""The loss is NaN from the second step on, and anomaly mode blames a line that looks sound.
After pytorch/pytorch#160016.
"""

import torch
from torch import nn


def elu(x, alpha):
    """Return x where it is positive, and alpha * (exp(x) - 1) elsewhere; alpha is learned."""
    growth = torch.exp(x) - 1
    curve = alpha * growth
    return torch.where(x > 0, x, curve)


class Net(nn.Module):
    """Two linear layers with an `elu` between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(2, 8), nn.Linear(8, 1)
        self.alpha = nn.Parameter(torch.tensor(1.0))

    def forward(self, inputs):
        """Return the predictions."""
        return self.second(elu(self.first(inputs), self.alpha))


def train(model, inputs, targets, steps):
    """Train with Adam, in fp32; return the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    for largest in (10, 200):
        torch.manual_seed(0)
        model, inputs = Net(), torch.rand(32, 2) * largest
        losses = train(model, inputs, inputs.sum(dim=1, keepdim=True) / 10, steps=40)
        print(
            f"inputs up to {largest}: loss {losses[0]:.2f}, then {losses[1]:.2f}, {losses[-1]:.2f} "
            f"at last"
        )
    try:
        with torch.autograd.detect_anomaly():
            train(Net(), inputs, inputs, steps=1)
    except RuntimeError as error:
        print("anomaly mode:", error)
