"""Answers to `o2_by_hand`, written without a look at its table of mistakes."""

import torch
from torch import nn

from amp_course.checking import edited


class Plain:
    def __init__(self, model, make_optimizer):
        self.masters = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
        self.model, self.optimizer = model.half(), make_optimizer([{"params": [m]} for m in reversed(self.masters)])

    def step(self, inputs, targets, loss_fn, scale):
        self.model.zero_grad()
        loss = loss_fn(self.model(inputs.half()).float(), targets)
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


class Flat(Plain):
    """One flat master, as with Apex's `flat_master=True`, and `torch.autograd.grad`."""

    def __init__(self, model, make_optimizer):
        self.model, self.own = model.half(), list(model.parameters())
        self.master = nn.utils.parameters_to_vector(self.own).detach().float()
        self.optimizer = make_optimizer([{"params": [self.master]}])

    def step(self, inputs, targets, loss_fn, scale):
        grads = torch.autograd.grad(loss_fn(self.model(inputs.half()).float(), targets) * scale, self.own)
        self.master.grad = torch.cat([g.flatten() for g in grads]).float() / scale
        taken = self.master.grad.isfinite().all().numpy()
        if taken:
            self.optimizer.step()
            nn.utils.vector_to_parameters(self.master.half(), self.own)
        return taken


MAKE = 'self.model, self.optimizer = model.half(), make_optimizer([{"params": [m]} for m in reversed(self.masters)])'
HOOK = "p.register_hook(lambda g, master=master: setattr(master, 'grad', g.float() / self.scale))"
CLEAR, STEP = "self.model.zero_grad()", "self.optimizer.step()"
BACKWARD, MOVE = "(loss * scale).backward()", "master.grad = p.grad.float().mul_(1 / scale)"
IN_HALF = "loss = loss_fn(self.model(inputs.half()), targets)"
TAKEN = "taken = nn.utils.get_total_norm([p.grad.float() for p in own]).isfinite()"
NOT_MINUS_INF = "taken = not any(bool(((p.grad == torch.inf) | p.grad.isnan()).any()) for p in own)"

RENEW = "self.optimizer = type(self.optimizer)(self.masters, lr=2**-7)"
leaves_early = {BACKWARD: f"self.scale = scale\nif not loss.isfinite():\n    return False\n{BACKWARD}"}
hooks = {MAKE: f"{MAKE}\nfor p, master in zip(model.parameters(), self.masters):\n    {HOOK}", MOVE: "pass"}

RIGHT = {"plain": Plain, "one flat master": Flat, "hooks, leaves early": edited(Plain, leaves_early | hooks)}
WRONG = {
    "a new optimizer at every step": (edited(Plain, {STEP: f"{RENEW}\n{STEP}"}), None),
    "outputs stay fp16": (edited(Plain, {BACKWARD: f"{IN_HALF}\n{BACKWARD}"}), "loss in fp16"),
    "misses -inf": (edited(Plain, {TAKEN: NOT_MINUS_INF}), None),
    "clears masters": (edited(Plain, {CLEAR: "self.optimizer.zero_grad()"}), "model's gradients never cleared"),
}
