# fault: scaler-inside-step
import torch
from torch import nn


def train_step(model, opt, x, y):
    scaler = torch.amp.GradScaler("cpu")
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = ((model(x) - y) ** 2).float().mean()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    return loss.detach()


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for i in range(80):
        x = torch.rand(64, 4)
        loss = train_step(model, opt, x, 200 * x.prod(1, keepdim=True))
        if i % 10 == 0:
            print(i, float(loss))


main()
