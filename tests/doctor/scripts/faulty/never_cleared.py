# fault: never-cleared
import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


def train_epoch(model, optimizer, x, y, size):
    model.train()
    total = 0.0
    for xb, yb in batches(x, y, size):
        loss = F.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    return total / len(x)


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    y = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        loss = train_epoch(model, optimizer, x[:1500], y[:1500], args.batch_size)
        print(f"epoch {epoch} loss {loss:.3f} accuracy {accuracy(model, x[1500:], y[1500:]):.3f}")


if __name__ == "__main__":
    main()
