# EXPECTED: gradient-differs or never-cleared: D's backward begins with what G's loss left in D's
# gradients.
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
G, D = nn.Linear(6, 20), nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1))
og, od = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
batches = [(torch.randn(16, 20), torch.randn(16, 6)) for _ in range(4)]
one, zero = torch.ones(16, 1), torch.zeros(16, 1)


def step(real, z):
    og.zero_grad()
    od.zero_grad()
    fake = G(z)
    bce(D(fake), one).backward()  # fills D's gradients too
    og.step()
    (
        bce(D(real), one) + bce(D(fake.detach()), zero)
    ).backward()  # od.zero_grad() is missing before this
    od.step()


losses = [
    lambda m, x, z: bce(m[1](m[0](z)), one),
    lambda m, x, z: bce(m[1](x), one) + bce(m[1](m[0](z).detach()), zero),
]
print(audit(step, model=[G, D], optimizer=[og, od], batches=batches, loss=losses))
