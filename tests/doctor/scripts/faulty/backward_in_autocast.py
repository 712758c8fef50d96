# fault: backward-in-autocast
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(30, 64)
        self.fc2 = nn.Linear(64, 5)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x)))


def train(args, model, data, target, optimizer, scaler, epoch):
    model.train()
    for batch_idx, i in enumerate(range(0, len(data), args.batch_size)):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(data[i : i + args.batch_size])
            loss = F.cross_entropy(output, target[i : i + args.batch_size])
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{i}/{len(data)}]\tLoss: {loss.item():.6f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--log-interval", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(1)
    data = torch.randn(500, 30)
    target = (data @ torch.randn(30, 5)).argmax(1)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(1, args.epochs + 1):
        train(args, model, data, target, optimizer, scaler, epoch)


if __name__ == "__main__":
    main()
