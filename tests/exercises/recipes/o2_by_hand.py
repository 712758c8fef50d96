"""Answers to `o2_by_hand`, written without a look at its table of mistakes."""

from typing import ClassVar

import torch
from torch import nn

from amp_course.checking import edited


class Plain:
    def __init__(self, model, make_optimizer):
        self.masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        self.model, self.optimizer = (
            model.half(),
            make_optimizer([{"params": [m]} for m in reversed(self.masters)]),
        )

    def step(self, inputs, targets, loss_fn, scale):
        self.model.zero_grad()
        loss = loss_fn(self.model(inputs.to(torch.float16)).float(), targets)
        (loss * scale).backward()
        own = list(self.model.parameters())
        taken = nn.utils.get_total_norm([p.grad.float() for p in own]).isfinite()
        if not taken:
            return taken
        for p, master in zip(own, self.masters, strict=True):
            master.grad = p.grad.float().mul_(1 / scale)
        self.optimizer.step()
        for p, master in zip(own, self.masters, strict=True):
            p.data.copy_(master.data)
        return taken


MAKE = (
    'self.model, self.optimizer = model.half(), make_optimizer([{"params": [m]} for m in '
    "reversed(self.masters)])"
)
HOOK = "p.register_hook(lambda g, master=master: setattr(master, 'grad', g.float() / self.scale))"
CLEAR, STEP = "self.model.zero_grad()", "self.optimizer.step()"
BACKWARD, MOVE = "(loss * scale).backward()", "master.grad = p.grad.float().mul_(1 / scale)"
IN_HALF = "loss = loss_fn(self.model(inputs.half()), targets)"
TAKEN = "taken = nn.utils.get_total_norm([p.grad.float() for p in own]).isfinite()"
NOT_MINUS_INF = "taken = not any(bool(((p.grad == torch.inf) | p.grad.isnan()).any()) for p in own)"

GRADS = (
    "for p, g in zip(model.parameters(), torch.autograd.grad(loss * scale, "
    "[*model.parameters()])):\n    p.grad = g"
)
leaves_early = {
    BACKWARD: f"self.scale = scale\nif not loss.isfinite():\n    return False\n{BACKWARD}"
}
hooks = {
    MAKE: f"{MAKE}\nfor p, master in zip(model.parameters(), self.masters):\n    {HOOK}",
    MOVE: "pass",
}

own_gradients = edited(Plain, {BACKWARD: f"model = self.model\n{GRADS}"})
RIGHT = {
    "plain": Plain,
    "`autograd.grad`": own_gradients,
    "hooks, leaves early": edited(Plain, leaves_early | hooks),
}


class OneListForAll(Plain):
    masters: ClassVar[list] = []

    def __init__(self, model, make_optimizer):
        self.masters += [p.detach().clone() for p in model.parameters()]
        self.model, self.optimizer = model.half(), make_optimizer(self.masters)


COPY = "p.data.copy_(master.data)"
SUM = "taken = sum(p.grad.sum() for p in own).isfinite()"
WRONG = {
    "masters of the class": (OneListForAll, "remembers an earlier call"),
    "the sum is finite": (edited(Plain, {TAKEN: SUM}), "judges by the norm"),
    "renews masters": (
        edited(Plain, {STEP: f"self.masters[0].data = own[0].data.float()\n{STEP}"}),
        None,
    ),
    "outputs stay fp16": (edited(Plain, {BACKWARD: f"{IN_HALF}\n{BACKWARD}"}), "loss in fp16"),
    "misses -inf": (edited(Plain, {TAKEN: NOT_MINUS_INF}), "misses −inf"),
    "the maximum": (
        edited(Plain, {TAKEN: "taken = all(bool(p.grad.amax().isfinite()) for p in own)"}),
        "misses −inf",
    ),
    "matrices": (
        edited(Plain, {TAKEN: "taken = bool(own[0].grad.isfinite().all())"}),
        "looks at the first gradient only",
    ),
    "masters from the weights": (
        edited(
            Plain, {STEP: f"for p, m in zip(own, self.masters): m.data = p.data.float()\n{STEP}"}
        ),
        "rounds the masters before the step",
    ),
    "weights from the masters, and back": (
        edited(Plain, {COPY: f"{COPY}\nmaster.data = p.data.float()"}),
        "rounds the masters after the step",
    ),
    "shares the data": (edited(Plain, {COPY: "p.data = master.data.clone()"}), "float32 weights"),
    "times the scale": (edited(Plain, {MOVE: MOVE.replace("1 / ", "")}), "multiplies by the scale"),
    "clears masters": (
        edited(Plain, {CLEAR: "self.optimizer.zero_grad()"}),
        "model's gradients never cleared",
    ),
}
