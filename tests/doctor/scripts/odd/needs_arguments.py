# odd: needs arguments
import argparse

import torch

parser = argparse.ArgumentParser(description="Fit a line.")
parser.add_argument("slope", type=float)
parser.add_argument("--output", required=True)
parser.add_argument("--steps", type=int, default=40)
args = parser.parse_args()

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(args.steps):
    x = torch.randn(32, 1)
    loss = torch.nn.functional.mse_loss(model(x), args.slope * x)
    opt.zero_grad()
    loss.backward()
    opt.step()
torch.save(model.state_dict(), args.output)
print("saved", args.output, loss.item())
