import argparse

import torch
from torch import nn


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=80)
    p.add_argument("--lr", type=float, default=0.02)
    p.add_argument("--warmup", type=int, default=10)
    p.add_argument("--init-scale", type=float, default=2.0**24)
    return p.parse_args()


def factor(warmup, total):
    def at(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.0, (total - step) / (total - warmup))

    return at


def main(args):
    torch.manual_seed(0)
    teacher = nn.Linear(16, 4)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(opt, factor(args.warmup, args.steps))
    scaler = torch.amp.GradScaler("cpu", init_scale=args.init_scale)
    for step in range(args.steps):
        x = torch.randn(48, 16)
        with torch.no_grad():
            target = teacher(x)
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scale = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= scale:  # the scale falls when the step was skipped
            schedule.step()
        if step % 10 == 0:
            print(step, f"{loss.item():.4f}", f"lr {schedule.get_last_lr()[0]:.4f}")


main(parse())
