# two-layer net on raw tensors, an optimizer per layer, evaluation in between
import torch

rng = torch.Generator().manual_seed(0)
W = [torch.randn(2, 16, generator=rng), torch.randn(16, 1, generator=rng) / 4]
B = [torch.zeros(16), torch.zeros(1)]
for t in W + B:
    t.requires_grad = True
optimizers = [torch.optim.SGD([w, b], lr=lr, momentum=0.9) for w, b, lr in zip(W, B, (0.1, 0.05), strict=True)]


def f(x):
    return (torch.tanh(x @ W[0] + B[0]) @ W[1] + B[1])[:, 0]


def batch(n):
    x = torch.rand(n, 2, generator=rng) * 2 - 1
    return x, (x.prod(1) > 0).float()


xt, yt = batch(400)
for i in range(150):
    x, y = batch(64)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(f(x), y)
    loss.backward()
    for o in optimizers:
        o.step()
    for o in optimizers:
        o.zero_grad()
    if i % 25 == 0:
        with torch.no_grad():
            right = ((f(xt) > 0).float() == yt).float().mean()
        print(f"{i:4d} {loss.item():.3f} {right:.2%}")
