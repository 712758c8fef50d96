# fault: diverges
import torch

torch.manual_seed(0)
house = torch.stack([torch.rand(256) * 200 + 40, torch.randint(1, 7, (256,)).float(), torch.rand(256) * 90], 1)
price = house @ torch.tensor([3.1, 12.0, -0.8]) + 25 + torch.randn(256)

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(40):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(house).squeeze(1), price)
    loss.backward()
    optimizer.step()
    if epoch % 2 == 0:
        print(f"epoch {epoch}: {loss.item():.4g}")
