"""Answers to `make_fast`, written without a look at its table of mistakes."""

import functools

import torch
from torch.nn import functional as F

from amp_course.checking import edited


def forward(model, inputs, depth):
    for _ in range(depth):
        inputs = model["block"](inputs).tanh()
    return model["head"](inputs)


def foreach(model, batches, depth):
    sgd = torch.optim.SGD([*model.parameters()], 0.1, 0.9, foreach=True)
    losses = torch.zeros(len(batches))
    for number, (inputs, targets) in enumerate(batches):
        sgd.zero_grad(set_to_none=False)
        with torch.autocast("cpu"):
            logits = forward(model, inputs, depth)
        loss = F.cross_entropy(logits.float(), targets)
        loss.backward()
        sgd.step()
        losses[number] = loss.detach()
    return losses


def by_hand(model, batches, depth):
    parameters = list(model.parameters())
    velocities = [torch.zeros_like(one) for one in parameters]
    losses = []
    for inputs, targets in batches:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses.append(F.nll_loss(forward(model, inputs, depth).log_softmax(-1), targets))
        gradients = torch.autograd.grad(losses[-1], parameters)
        with torch.no_grad():
            torch._foreach_mul_(velocities, 0.9)
            torch._foreach_add_(velocities, gradients)
            torch._foreach_sub_(parameters, torch._foreach_mul(velocities, 0.1))
    return [loss.item() for loss in losses]


def decorated(model, batches, depth):
    loss_of = torch.autocast("cpu", dtype=torch.bfloat16)(
        lambda x, y: F.cross_entropy(forward(model, x, depth), y)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def closure(batch):
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        return loss

    losses = [optimizer.step(functools.partial(closure, batch)).detach() for batch in batches]
    return tuple(torch.stack(losses).cpu().numpy())


def slow(model, batches, depth):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses = []
    for inputs, targets in batches:
        row_losses = []
        for row, target in zip(inputs, targets, strict=True):
            hidden = row
            for _ in range(depth):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    hidden = torch.tanh(model["block"](hidden))
            with torch.autocast("cpu", enabled=False):
                logits = model["head"](hidden.float())
            row_losses.append(F.cross_entropy(logits, target))
        loss = torch.stack(row_losses).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


SGD = "sgd = torch.optim.SGD([*model.parameters()], 0.1, 0.9, foreach=True)"
STEP, LOGITS = "sgd.step()", "logits = forward(model, inputs, depth)"
UNCACHED = {'with torch.autocast("cpu"):': 'with torch.autocast("cpu", cache_enabled=False):'}
RIGHT = {
    "foreach, in a buffer": foreach,
    "a momentum of its own": by_hand,
    "a closure, a decorator": decorated,
}
WRONG = {
    "the slow loop": (slow, "rows one at a time"),
    "the default optimizer": (
        edited(foreach, {SGD: SGD.replace(", foreach=True", "")}),
        "each parameter on its own",
    ),
    "no cache": (edited(foreach, UNCACHED), "a region for each call"),
    "stops at NaN": (edited(foreach, {STEP: f"if loss.isnan(): break\n{STEP}"}), "reads each loss"),
    "stacks the graphs": (
        lambda *given: torch.stack(
            [torch.ones((), requires_grad=True) * x for x in foreach(*given)]
        ),
        "returns the graphs",
    ),
    "the batch twice": (
        edited(foreach, {LOGITS: f"forward(model, inputs, depth)\n{LOGITS}"}),
        None,
    ),
    "the last loss": (lambda *arguments: foreach(*arguments)[-1].item(), None),
}
