import torch
from torch.nn import functional as F


# bf16 parameters, each with a bf16 buffer that holds what rounding took from it (Kahan summation)
class KahanAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                if not s:
                    s["t"] = 0
                    s["m"] = torch.zeros_like(p, dtype=torch.float32)
                    s["v"] = torch.zeros_like(p, dtype=torch.float32)
                    s["lost"] = torch.zeros_like(p)
                s["t"] += 1
                g = p.grad.float()
                s["m"].lerp_(g, 1 - b1)
                s["v"].lerp_(g * g, 1 - b2)
                m, v = s["m"] / (1 - b1 ** s["t"]), s["v"] / (1 - b2 ** s["t"])
                update = (-group["lr"] * m / (v.sqrt() + group["eps"])).to(p.dtype) + s["lost"]
                before = p.clone()
                p.add_(update)
                s["lost"] = update - (p - before)


torch.manual_seed(2)
w1 = (torch.randn(32, 8) / 3).bfloat16().requires_grad_()
b1 = torch.zeros(32, dtype=torch.bfloat16, requires_grad=True)
w2 = (torch.randn(2, 32) / 6).bfloat16().requires_grad_()
optim = KahanAdam([w1, b1, w2], lr=2e-3)

x = torch.randn(256, 8)
labels = (x[:, 0] * x[:, 1] > 0).long()
xh = x.bfloat16()
for i in range(150):
    logits = F.linear(F.relu(F.linear(xh, w1, b1)), w2)
    loss = F.cross_entropy(logits.float(), labels)
    for p in (w1, b1, w2):
        p.grad = None
    loss.backward()
    optim.step()
    if not i % 30:
        print(i, loss.item())
