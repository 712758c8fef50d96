# odd: trains with torch.autograd.grad and updates by hand, no optimizer at all
import torch
from torch.func import functional_call
from torch.nn import functional as F

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(7, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3))
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
velocity = {k: torch.zeros_like(v) for k, v in params.items()}
rule = torch.randn(7, 3)

for step in range(60):
    x = torch.randn(64, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = functional_call(net, params, (x,))
    loss = F.cross_entropy(logits.float(), (x @ rule).argmax(1))
    grads = torch.autograd.grad(loss, list(params.values()))
    for (name, p), g in zip(params.items(), grads, strict=True):
        velocity[name] = 0.9 * velocity[name] + g
        params[name] = (p.detach() - 0.1 * velocity[name]).requires_grad_()
    if step % 10 == 0:
        print(step, loss.item())
