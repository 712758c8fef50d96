"""Answers to `clip_both`, written without a look at its table of mistakes."""

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_, get_total_norm

from amp_course.checking import edited


def parameters_of(optimizers):
    return [
        p
        for o in optimizers
        for group in o.param_groups
        for p in group["params"]
        if p.grad is not None
    ]


def on_scaled_gradients(optimizers, scaler, max_norm):
    gradients, scale = [p.grad for p in parameters_of(optimizers)], scaler.get_scale()
    norm = get_total_norm(gradients)
    [gradient.mul_(min(1.0, max_norm * scale / float(norm))) for gradient in gradients]
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
        if norm.isfinite():
            optimizer.step()
    scaler.update()
    return np.float32(norm / scale)


def looks_into_the_scaler(optimizers, scaler, max_norm):
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    norm = clip_grad_norm_(parameters_of(optimizers), max_norm)
    states = [
        scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
        for optimizer in optimizers
    ]
    if not any(found.item() for state in states for found in state.values()):
        [optimizer.step() for optimizer in optimizers]
    scaler.update()
    return norm


def without_its_norm(optimizers, scaler, max_norm):
    """Leaves the gradients alone where their norm is inf, and steps."""
    [scaler.unscale_(optimizer) for optimizer in optimizers]
    norm = torch.cat([p.grad.flatten() for p in parameters_of(optimizers)]).norm()
    if norm.isfinite():
        clip_grad_norm_(parameters_of(optimizers), max_norm)
    for optimizer in (
        optimizers if all(p.grad.isfinite().all() for p in parameters_of(optimizers)) else ()
    ):
        scaler.step(optimizer)
    scaler.update()
    return norm


def one_norm_of(parameters, optimizers, scaler, max_norm):
    [scaler.unscale_(optimizer) for optimizer in optimizers]
    norm = clip_grad_norm_(parameters, max_norm)
    [scaler.step(optimizer) for optimizer in optimizers if norm.isfinite()]
    scaler.update()
    return norm


NORM = "norm = get_total_norm(gradients)"
RIGHT = {
    "clips scaled gradients, own step": on_scaled_gradients,
    "in float64": edited(
        on_scaled_gradients, {NORM: "norm = get_total_norm([g.double() for g in gradients])"}
    ),
    "scaler.step": edited(on_scaled_gradients, {"optimizer.step()": "scaler.step(optimizer)"}),
}
WRONG = {
    "the first group of one": (
        lambda o, *rest: one_norm_of(o[0].param_groups[0]["params"], o, *rest),
        "clips one group only",
    ),
    "the first optimizer": (
        lambda o, *rest: one_norm_of(parameters_of(o[:1]), o, *rest),
        "clips the first only",
    ),
    "returns at most max_norm": (
        lambda *given: min(float(on_scaled_gradients(*given)), given[-1]),
        "returns the norm after clipping",
    ),
    "what the scaler found": (looks_into_the_scaler, "tests the gradients, not the norm"),
    "unclipped where the norm is inf": (without_its_norm, "tests the gradients, not the norm"),
    "infinity norm": (
        edited(on_scaled_gradients, {NORM: "norm = get_total_norm(gradients, float('inf'))"}),
        None,
    ),
    "tests for inf only": (
        edited(on_scaled_gradients, {"if norm.isfinite():": "if not norm.isinf():"}),
        None,
    ),
    "unscales nothing": (
        edited(
            on_scaled_gradients,
            {"scaler.unscale_(optimizer)": "pass", "optimizer.step()": "scaler.step(optimizer)"},
        ),
        "divides the norm",
    ),
    "clears": (lambda *a: (on_scaled_gradients(*a), [o.zero_grad() for o in a[0]])[0], "clears"),
}
