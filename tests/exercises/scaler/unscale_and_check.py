"""Answers to `unscale_and_check`, written without a look at its table of mistakes."""

import numpy as np
import torch

INF = float("inf")


def gradients(optimizer):
    return [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]


def foreach(optimizer, scale, find=lambda g: not g.isfinite().all(), which=slice(None)):
    torch._foreach_mul_(gradients(optimizer)[which], 1 / scale)
    return torch.stack([torch.as_tensor(find(g)) for g in gradients(optimizer)[which]]).any()


def new_gradients(optimizer, scale):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None if p.grad is None else p.grad / scale
    return max(0.0 if g.abs().max() < INF else 1.0 for g in gradients(optimizer))


def numpy_first(optimizer, scale):
    found = np.logical_not(all(np.isfinite(g.numpy()).all() for g in gradients(optimizer)))
    for g in gradients(optimizer):
        g.numpy()[...] /= scale
    return found


def sticky(optimizer, scale, found=[]):  # noqa: B006
    found += [not g.div_(scale).isfinite().all() for g in gradients(optimizer)]
    return any(found)


RIGHT = {"foreach": foreach, "new gradients": new_gradients, "numpy": numpy_first}
WRONG = {
    "a list that lasts": (sticky, "remembers an earlier call"),
    "group 0": (lambda o, s: foreach(o, s, which=slice(0, 2)), "first group only"),
    "norm": (
        lambda o, s: foreach(o, s, lambda g: not g.norm().isfinite()),
        "judges by the norm",
    ),
    "max of abs": (lambda o, s: foreach(o, s, lambda g: g.abs().max() == INF), "misses NaN"),
    "sum after unscaling": (
        lambda o, s: foreach(o, s, lambda g: not g.sum().isfinite()),
        "judges by the norm",
    ),
    "the maximum": (
        lambda o, s: foreach(o, s, lambda g: not g.max().isfinite()),
        "misses the −inf next to a finite maximum",
    ),
    "in fp16": (
        lambda o, s: foreach(o, s, lambda g: not g.half().isfinite().all()),
        "looks for inf in fp16",
    ),
    "divides if all is well": (
        lambda o, s: any(not g.isfinite().all() for g in gradients(o)) or bool(foreach(o, s)),
        "skips all",
    ),
    "any, early": (
        lambda o, s: any(foreach(o, s, which=slice(n, n + 1)) for n in range(4)),
        "returns before the rest",
    ),
}
SIBLINGS = {
    "looks at the last gradient only": (
        lambda o, s: (
            bool([g.div_(s) for g in gradients(o)]) and not gradients(o)[-1].isfinite().all()
        ),
        "the last gradient decides",
        "overwrites",
    ),
    "never divides": (
        lambda o, s: any(not g.isfinite().all() for g in gradients(o)),
        "new tensors",
        "is a new tensor",
    ),
}
