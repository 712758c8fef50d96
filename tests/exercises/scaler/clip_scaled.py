"""Answers to `clip_scaled`, written without a look at its table of mistakes."""

import math

import numpy as np
import torch

from amp_course.checking import edited


def scaled_norm(loss, parameters, optimizer, scaler, max_norm):
    (loss * scaler.get_scale()).backward()
    scale = scaler.get_scale()
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm * scale)
    scaler.step(optimizer)
    scaler.update()
    return (norm / scale).item()


def by_hand(loss, parameters, optimizer, scaler, max_norm):
    parameters = list(parameters)
    for p, g in zip(parameters, torch.autograd.grad(scaler.scale(loss), parameters), strict=True):
        p.grad = g if p.grad is None else g + p.grad
    scaler.unscale_(optimizer)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))
    for p in parameters:
        p.grad *= min(1.0, max_norm / norm)
    if math.isfinite(norm):
        optimizer.step()
    scaler.update()
    return np.float32(norm)


def reads_twice(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


def in_groups(loss, parameters, optimizer, scaler, max_norm):
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    groups = [group["params"] for group in optimizer.param_groups]
    norm = torch.stack([torch.nn.utils.clip_grad_norm_(one, max_norm) for one in groups]).norm()
    scaler.step(optimizer)
    scaler.update()
    return norm


EARLIER = "p.grad = g if p.grad is None else g + p.grad"
ROOT = "norm = math.sqrt(sum(float(p.grad.square().sum()) for p in parameters))"
TEST, CLIP = "if math.isfinite(norm):", "p.grad *= min(1.0, max_norm / norm)"
SKIP = "if not math.isfinite(norm):\n    return scaler.update()\nif True:"

RIGHT = {
    "scaled norm": scaled_norm,
    "by hand": by_hand,
    "returns early": edited(by_hand, {TEST: SKIP}),
}
WRONG = {
    "half of the sum": (
        edited(by_hand, {EARLIER: EARLIER.replace("g + p.grad", "(g + p.grad) / 2")}),
        None,
    ),
    "a generator used up": (reads_twice, "reads a generator twice"),
    "the limit unscaled": (
        edited(scaled_norm, {"scale = scaler.get_scale()": "scale = 1.0"}),
        "clips before unscaling",
    ),
    "the scale too late": (
        edited(scaled_norm, {"return (norm / scale).item()": "return norm / scaler.get_scale()"}),
        "the scale after the update",
    ),
    "each group": (in_groups, "clips in parts"),
    "the first group": (
        edited(
            in_groups,
            {
                'groups = [group["params"] for group in optimizer.param_groups]': (
                    "groups = [optimizer.param_groups[0]['params']]"
                )
            },
        ),
        "clips the first parameter group only",
    ),
    "the first parameter": (
        lambda loss, p, *rest: scaled_norm(loss, [*p][:1], *rest),
        "clips the first parameter only",
    ),
    "a sum": (
        edited(by_hand, {ROOT: "norm = sum(float(p.grad.norm()) for p in parameters)"}),
        "sum of norms",
    ),
    "the smaller of norm and limit": (
        lambda *args: min(scaled_norm(*args), args[-1]),
        "returns the norm after clipping",
    ),
    "own test misses NaN": (edited(by_hand, {TEST: "if norm != math.inf:"}), None),
    "divides the weights": (edited(by_hand, {CLIP: CLIP.replace("grad", "data")}), "no clipping"),
    "huge, not inf": (lambda *args: min(float(scaled_norm(*args)), 3e38), None),
}


def counts_first(loss, parameters, optimizer, scaler, max_norm):
    if len([*parameters]) == 0:
        raise ValueError("no parameters")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    norm = torch.nn.utils.get_total_norm(grads)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


SIBLINGS = {
    "a generator used up by counting": (
        counts_first,
        "reads a generator twice",
        "once the norm is computed",
    )
}
