import torch

# Rosenbrock's valley in ten dimensions, no module in sight.
x = torch.full((10,), -1.0).requires_grad_()
x.data[::2] = 0.5
opt = torch.optim.LBFGS([x], lr=1.0, max_iter=4, history_size=8, line_search_fn="strong_wolfe")
evaluations = 0


def closure():
    global evaluations
    evaluations += 1
    opt.zero_grad()
    f = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    f.backward()
    return f


for k in range(30):
    value = opt.step(closure)
    if k % 5 == 0:
        print(f"{k:2d}  f = {value.item():.3e}  after {evaluations} evaluations")
