"""Answers to `kahan_sgd`, written without a look at its table of mistakes."""

from functools import partial

import torch

from amp_course.checking import edited
from amp_course.underflow import MasterSGD


class AllInBf16:
    """Zamirai et al. 2020 (arXiv:2010.06192), algorithm 1: no float32 anywhere."""

    def __init__(self, params, lr):
        self.pairs = [(p, torch.zeros(p.shape, dtype=p.dtype)) for p in params]
        self.lr = lr

    def step(self):
        for p, carry in self.pairs:
            if p.grad is not None:
                w = p.data
                y = p.grad * -self.lr - carry
                s = w + y
                carry.copy_((s - w) - y)
                p.data = s


class Optimizer(torch.optim.Optimizer):
    """A subclass of torch's, with the buffer in its state, made at the first step."""

    def __init__(self, params, lr):
        super().__init__(list(params), {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["lost"] = torch.zeros_like(p)
                wanted = p.double() - group["lr"] * p.grad.double() + state["lost"].double()
                p.copy_(wanted.float())
                state["lost"] = (wanted - p.double()).to(p.dtype)


class OnTheParameter:
    """The buffer hangs on the parameter."""

    def __init__(self, params, lr, dtype=torch.bfloat16, keeps=1.0):
        self.params, self.lr, self.keeps = tuple(params), lr, keeps
        for p in self.params:
            p.carry = torch.zeros_like(p, dtype=dtype)

    @torch.no_grad()
    def step(self):
        for p in self.params:
            if p.grad is None:
                continue
            exact = p.float() + p.carry.float() - self.lr * p.grad.float()
            p.copy_(exact)
            p.carry = ((exact - p.float()) * self.keeps).to(p.carry.dtype)


Y, CARRY = "y = p.grad * -self.lr - carry", "carry.copy_((s - w) - y)"
RIGHT = {
    "all in bf16": AllInBf16,
    "torch's optimizer": Optimizer,
    "on the parameter": OnTheParameter,
}
WRONG = {
    "torch's SGD": (torch.optim.SGD, "plain SGD"),
    "masters": (MasterSGD, "master weights"),
    "float64 carries": (partial(OnTheParameter, dtype=torch.float64), None),
    "float32 carries": (partial(OnTheParameter, dtype=torch.float32), "a buffer in float32"),
    "fp16 carries": (partial(OnTheParameter, dtype=torch.float16), "a buffer in fp16"),
    "float8 carries": (partial(OnTheParameter, dtype=torch.float8_e5m2), None),
    "half of it": (partial(OnTheParameter, keeps=0.5), None),
    "nothing of it": (partial(OnTheParameter, keeps=0.0), "reset at each step"),
    "the other sign": (edited(AllInBf16, {Y: "y = p.grad * -self.lr + carry"}), "the wrong sign"),
    "a generator": (
        edited(
            Optimizer,
            {
                'super().__init__(list(params), {"lr": lr})': "super().__init__([torch.zeros(1)], "
                '{"lr": lr})\nself.param_groups[0]["params"] = params'
            },
        ),
        "used up by the first step",
    ),
    "another tensor": (edited(AllInBf16, {"p.data = s": "p = s"}), "never writes back"),
    "the sum in bf16": (
        edited(
            OnTheParameter,
            {
                "exact = p.float() + p.carry.float() - self.lr * p.grad.float()": "exact = p + "
                "(p.carry - self.lr * p.grad)",
                "p.carry = ((exact - p.float()) * self.keeps).to(p.carry.dtype)": "p.carry.copy_("
                "exact.float() - p.float())",
            },
        ),
        "reset at each step",
    ),
    "adds up": (edited(AllInBf16, {CARRY: "carry.add_((s - w) - y)"}), None),
    "a new name": (edited(AllInBf16, {CARRY: "carry = (s - w) - y"}), "reset at each step"),
}
