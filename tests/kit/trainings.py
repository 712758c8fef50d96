"""Trainings whose bytes can be counted by hand.

For a SimpleNet of width w and a batch of b, in bytes: X = 4bw is an fp32 batch of activations, W =
4w² a weight, B = 4w a bias. In bf16 each is half.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from amp_course.kit.memory import StepMemory, step_memory
from amp_course.kit.models import SimpleNet

WIDTH, BATCH = 64, 32
X, W, B = 4 * BATCH * WIDTH, 4 * WIDTH**2, 4 * WIDTH
PARAMETERS = 3 * (W + B)
COUNTERS = 6 * 4  # Adam's number of steps, an fp32 number for each of 6 parameters
SCALAR = 4

OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=1e-3, foreach=False),
    "momentum": partial(torch.optim.SGD, lr=1e-3, momentum=0.9, foreach=False),
    "adam": partial(torch.optim.Adam, foreach=False),
    "adam foreach": partial(torch.optim.Adam, foreach=True),
}
STATE = {"sgd": 0, "momentum": PARAMETERS, "adam": 2 * PARAMETERS + COUNTERS}


def autocast(on: bool) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16) if on else nullcontext()


class Training:
    """A model, its optimizer and one batch, after a first step that made the optimizer's state."""

    def __init__(self, model, batch, optimizer, amp, loss_fn=F.mse_loss) -> None:
        self.model, self.batch, self.amp, self.loss_fn = model, batch, amp, loss_fn
        self.optimizer = OPTIMIZERS[optimizer](model.parameters())
        self.step()
        self.optimizer.zero_grad()

    def step(self) -> None:
        x, y = self.batch
        with autocast(self.amp):
            loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.optimizer.step()


def simple(optimizer: str = "sgd", amp: bool = False) -> Training:
    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    return Training(SimpleNet(WIDTH), batch, optimizer, amp)


def measured_once(model: nn.Module) -> StepMemory:
    return step_memory(model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: None)


def measured(training: Training) -> StepMemory:
    return step_memory(training.model, training.optimizer, training.step, training.batch)
