# EXPECTED: foreign-parameters, or an observation: the optimizer also steps 4 parameters of no model
# that was passed.
import itertools

import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax, softmax

from tests.cases.tools import audit

torch.set_num_threads(1)
torch.manual_seed(0)
student, teacher = (nn.Sequential(nn.Linear(20, h), nn.ReLU(), nn.Linear(h, 5)) for h in (32, 64))
optimizer = torch.optim.SGD(itertools.chain(student.parameters(), teacher.parameters()), lr=0.1)
batches = [(torch.randn(16, 20),) for _ in range(4)]


def step(x):
    optimizer.zero_grad()
    kl_div(log_softmax(student(x), -1), softmax(teacher(x), -1), reduction="batchmean").backward()
    optimizer.step()


print(audit(step, model=student, optimizer=optimizer, batches=batches))
