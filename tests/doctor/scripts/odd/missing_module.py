# odd: imports a module that is missing
import torch
from our_companys_layers import FancyLinear

torch.manual_seed(0)
model = torch.nn.Sequential(FancyLinear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(30):
    x = torch.randn(32, 8)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
