# EXPECTED: any finding: D's loss is scaled by its own scaler (256) and its optimizer stepped by G's
# (4096).
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
G, D = nn.Linear(6, 20), nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 1))
og, od = torch.optim.SGD(G.parameters(), 0.1), torch.optim.SGD(D.parameters(), 0.1)
sg, sd = (
    torch.amp.GradScaler("cpu", init_scale=4096.0),
    torch.amp.GradScaler("cpu", init_scale=256.0),
)
sg.scale(torch.zeros(()))
batches = [(torch.randn(16, 20), torch.randn(16, 6)) for _ in range(4)]
one, zero = torch.ones(16, 1), torch.zeros(16, 1)


def step(real, z):
    with torch.autocast("cpu", dtype=torch.float16):
        fake = G(z)
        loss_d = bce(D(real), one) + bce(D(fake.detach()), zero)
    od.zero_grad()
    sd.scale(loss_d).backward()
    sg.step(od)  # sd.step(od); sd.update()
    with torch.autocast("cpu", dtype=torch.float16):
        loss_g = bce(D(fake), one)
    og.zero_grad()
    sg.scale(loss_g).backward()
    sg.step(og)
    sg.update()


print(audit(step, model=[G, D], optimizer=[og, od], scaler=[sg, sd], batches=batches))
