# fault: log-of-zero
# Logistic regression from scratch.
import torch

torch.manual_seed(0)
n, d = 400, 5
X = torch.randn(n, d)
X[:, 4] = torch.randn(n).mul(2).exp()  # an amount: mostly small, at times large
y = (X[:, :4].sum(1) > 0).float()

w = torch.zeros(d, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
opt = torch.optim.SGD([w, b], lr=0.5)


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


for it in range(60):
    i = torch.randint(n, (50,))
    p = torch.sigmoid(X[i] @ w + b)
    loss = bce(p, y[i])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 4 == 0:
        print(it, loss.item())
