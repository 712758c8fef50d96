# odd: asks input()
import torch
from torch import nn

torch.manual_seed(0)
steps = int(input("How many steps? "))
net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(steps):
    x = torch.randn(32, 4)
    loss = nn.functional.mse_loss(net(x), x.sum(1, keepdim=True))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 10 == 0:
        print(step, loss.item())
if input("Save the model? [y/N] ").lower() == "y":
    torch.save(net.state_dict(), "net.pt")
