"""Answers to `master_sgd`, written without a look at its table of mistakes."""

from functools import partial

import torch

from amp_course.underflow import MasterSGD


class Delegates:
    """torch's SGD does the work, on the masters."""

    def __init__(
        self, params, lr, dtype=torch.float32, momentum=0.0, read=torch.clone, clears=False
    ):
        self.params, self.read, self.clears = tuple(params), read, clears
        self.masters = [torch.nn.Parameter(p.detach().to(dtype, copy=True)) for p in self.params]
        self.sgd = torch.optim.SGD(self.masters, lr, momentum)

    def step(self):
        for p, master in zip(self.params, self.masters, strict=True):
            master.grad = None if p.grad is None else self.read(p.grad).to(master.dtype)
            p.grad = None if self.clears else p.grad
        self.sgd.step()
        for p, master in zip(self.params, self.masters, strict=True):
            p.data = master.detach().to(p.dtype)


Mine = type("Mine", (Delegates,), {})
RIGHT = {
    "the package's": MasterSGD,
    "torch's SGD on masters": Mine,
    "in float64": partial(Mine, dtype=torch.float64),
}


class Frozen(Delegates):
    def step(self):
        super().step()
        for p in self.params:
            p.requires_grad = False


WRONG = {
    "frozen": (Frozen, None),
    "torch's SGD": (torch.optim.SGD, "plain SGD"),
    "bf16 masters": (partial(Delegates, dtype=torch.bfloat16), None),
    "gradients through fp16": (partial(Delegates, read=torch.Tensor.half), None),
}
