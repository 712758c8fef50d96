"""Answers to `where_it_dies`, written without a look at its table of mistakes."""

import dataclasses
from itertools import chain

import numpy as np
import torch
from torch import nn


def most(part, whole):
    return bool(whole.any()) and part[whole].float().mean().item() > 0.5


def found(
    step,
    idle=lambda w, g, lr: w - lr * g == w,
    bad=lambda x: x.isnan().any() or x.isinf().any(),
    most=most,
):
    """Generators, in parts that can be replaced."""
    grads, exact, weights = step.gradients, step.exact_gradients, step.weights
    forward = (["activation", name] for name, out in step.outputs.items() if bad(out))
    loss = (["loss", "loss"] for _ in range(1) if bad(step.loss))
    backward = (["gradient", n] for n, g in grads.items() if most(g == 0, exact[n] != 0))
    updates = (
        ["update", n] for n, g in grads.items() if most(idle(weights[n], g, step.lr), g != 0)
    )
    return next(chain(forward, loss, backward, updates), None)


def but(**parts):
    return lambda step: found(step, **parts)


def torch_sgd(weight, gradient, lr):
    parameter = nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    torch.optim.SGD([parameter], lr=lr).step()
    return parameter.detach() == weight


with_numpy = but(
    bad=lambda x: not np.isfinite(x.numpy()).all(),
    most=lambda part, whole: 2 * np.sum((part & whole).numpy()) > np.sum(whole.numpy()),
    idle=lambda w, g, lr: torch.from_numpy(w.numpy() - np.float16(lr) * g.numpy() == w.numpy()),
)
RIGHT = {
    "generators": found,
    "numpy": lambda step: (died := with_numpy(step)) and tuple(map(np.str_, died)),
    "torch's SGD": but(idle=torch_sgd),
}


def one_after_the_other(step):
    """Looks at gradient and update of one parameter, and then at those of the next."""
    for place in range(len(step.gradients)):
        names = [*step.gradients][: place + 1]
        so_far = {"gradients": {one: step.gradients[one] for one in names}}
        died = found(dataclasses.replace(step, **so_far))
        if died:
            return died
    return None


WRONG = {
    "only +inf": (but(bad=lambda x: (x == torch.inf).any()), None),
    "any": (but(most=lambda part, whole: bool((part & whole).any())), "gradients: one is enough"),
    "a share of all": (
        but(most=lambda part, whole: bool((part & whole).float().mean() > 0.5)),
        "gradients: half of all elements",
    ),
    "parameter by parameter": (one_after_the_other, "name by name"),
    "eps of the weight": (
        but(idle=lambda w, g, lr: (lr * g / w).abs() < 2.0**-10),
        "update < 2**-10 * weight.abs()",
    ),
    "no lr": (but(idle=lambda w, g, lr: w - g == w), None),
    "in float64": (but(idle=lambda w, g, lr: w.double() - lr * g.double() == w), "no update dies"),
}
