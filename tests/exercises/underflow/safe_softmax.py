"""Answers to `safe_softmax`, written without a look at its table of mistakes."""

import torch

INF = float("inf")


def filled(x, mask, filler=-1e30):
    return x.float().masked_fill(~mask, filler).softmax(-1).masked_fill(~mask, 0).half()


RIGHT = {
    "filled": filled,
    "−inf, then nan_to_num": lambda x, m: (
        x.masked_fill(~m, -INF).softmax(-1, torch.float32).nan_to_num(0).half()
    ),
    "float64, no maximum": lambda x, m: (
        (e := x.double().exp() * m) / e.sum(1, True).clamp_min(1e-300)
    ).half(),
}
WRONG = {
    "no maximum": (
        lambda x, m: ((e := x.float().masked_fill(~m, -1e9).exp()) / e.sum(1, True)).half(),
        "no maximum",
    ),
    "naive": (
        lambda x, m: (e := torch.exp(x) * m) / e.sum(-1, keepdim=True),
        "exp overflows in fp16",
    ),
    "naive in float32, then nan_to_num": (
        lambda x, m: (e := x.float().exp() * m).div(e.sum(-1, True)).nan_to_num().half(),
        "exp overflows in float32, and NaN becomes 0",
    ),
    "naive in fp16, then nan_to_num": (
        lambda x, m: (e := x.exp() * m).div(e.sum(-1, True)).nan_to_num(),
        "exp overflows in fp16, and NaN becomes 0",
    ),
    "one maximum": (
        lambda x, m: (
            (e := ((x := x.float().where(m, -1e9)) - x.max()).exp())
            .div(e.sum(1, True).clamp_min(1e-30))
            .half()
        ),
        "one maximum for all rows, and NaN becomes 0",
    ),
    "fills with −1e30": (
        lambda x, m: x.masked_fill(~m, -1e30).softmax(-1) * m,
        "fills past fp16's range",
    ),
    "−inf where visible": (
        lambda x, m: torch.where(m, -INF, x.float()).softmax(-1).masked_fill(~m, 0).half(),
        "fills what is visible with −inf",
    ),
    "fills with −100": (lambda x, m: filled(x, m, -100.0), "fills with −100"),
    "exp in fp16, sum in float32": (
        lambda x, m: (
            (e := ((x := x.where(m, -INF)) - x.amax(-1, True)).exp().nan_to_num(0).float())
            .div(e.sum(1, True).clamp_min(1e-30))
            .half()
        ),
        "subtracts in fp16",
    ),
    "in bf16": (lambda x, m: filled(x.bfloat16(), m), None),
    "small shares cut": (lambda x, m: (y := filled(x, m)) * (y > 1e-4), None),
}
