"""The loss barely moves, although the gradients are neither small nor NaN.
After pytorch/ao#1124 and OneTrainer#996.
"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy


def train(model, batches, lr):
    """Train in bf16; return the losses."""
    model.to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for inputs, targets in batches:
        logits = model(inputs.to(torch.bfloat16))
        loss = cross_entropy(logits.float(), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=1.0)
    inputs = torch.randn(32, 8)
    batches = [(inputs, inputs[:, :4].argmax(dim=1))] * 120
    for number, loss in enumerate(train(model, batches, lr=0.001), 1):
        if number % 30 == 0 or number == 1:
            print(f"step {number}: loss {loss:.4f}")
    norm = nn.utils.clip_grad_norm_(model.parameters(), torch.inf)  # clips nothing
    print(f"norm of the last gradient {norm:.2f}")
