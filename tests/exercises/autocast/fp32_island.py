"""Answers to `fp32_island`, written without a look at its table of mistakes."""

import torch
from torch.nn import functional as F

off = torch.autocast("cpu", enabled=False)


def norm(x):
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def router(x, weight):
    return F.linear(norm(x.float()), weight.float())


RIGHT = {
    "a decorator, rms_norm": off(router),
    "elementwise": lambda x, w: (norm(x.to(w.dtype))[:, None, :] * w).sum(dim=-1),
    "in double": off(lambda x, w: (norm(x.double()) @ w.T.double()).float()),
}


def by_hand(x, weight):
    torch.set_autocast_enabled("cpu", False)
    try:
        return router(x, weight)
    finally:
        torch.set_autocast_enabled("cpu", True)


WRONG = {
    "on again by hand": (by_hand, "leaves autocast on"),
    "float, einsum, float": (
        lambda x, w: torch.einsum("nf,ef->ne", norm(x.float()), w).float(),
        "no enabled=False, and the result cast",
    ),
    "for another device": (torch.autocast("cuda", enabled=False)(router), "no enabled=False"),
    "the norm in 16 bits, no gradient": (
        off(lambda x, w: router(norm(x).detach(), w)),
        "detaches x",
    ),
    "squares in 16 bits": (
        off(lambda x, w: router(x * (x.square().mean(-1, True).float() + 1e-6).rsqrt(), w)),
        None,
    ),
}
