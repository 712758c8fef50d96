# EXPECTED: no fault, four times: the optimizer's step(), or a hook before it, divides by the
# micro-batches or by a static scale.
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.cases.tools import audit


def divide(optimizer, by):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad.div_(by)


class Dividing(torch.optim.SGD):
    by = 1

    def step(self, closure=None):
        divide(self, self.by)
        return super().step(closure)


for scale, micro in ((1, 2), (1024, 1)):
    for where in ("subclass", "pre-hook"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))
        optimizer = Dividing(model.parameters(), lr=0.1)
        if where == "subclass":
            optimizer.by = scale * micro
        else:
            optimizer.register_step_pre_hook(lambda o, a, k: divide(o, scale * micro))
        batches = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(4)]

        def step(x, y, last):
            (cross_entropy(model(x), y) * scale).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()

        print(
            where,
            audit(
                step,
                model=model,
                optimizer=optimizer,
                batches=batches,
                accumulate=micro,
                loss=lambda m, x, y: cross_entropy(m(x), y),
            ).names,
        )
