"""Answers to `matmul_dtype`, written without a look at its table of mistakes."""

import torch
from torch import nn
from torch.nn import functional as F

from amp_course.checking import edited


def by_linear(make_region):
    layer, x = nn.Linear(4, 3).float(), torch.zeros(1, 4)
    with make_region():
        return layer(x).dtype


def by_hand(make_region):
    x = torch.randn(8, 8)
    region = make_region()
    region.__enter__()
    try:
        dtype = torch.einsum("ij,jk->ik", x, x).dtype
    finally:
        region.__exit__(None, None, None)
    return dtype


def inside(make_region):
    with make_region():
        x = torch.ones(1, 3, 3, dtype=torch.float32)
        return F.relu(torch.bmm(x, x)).dtype


def setting(make_region):
    with make_region():
        enabled, dtype = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    return dtype if enabled else torch.float32


def made_inside(make_region):
    with make_region():
        return nn.Linear(2, 2)(torch.ones(1, 2)).dtype


def softmax(make_region):
    x = torch.ones(2)
    with make_region():
        return x.softmax(0).dtype


LAYER = "layer, x = nn.Linear(4, 3).float(), torch.zeros(1, 4)"
PRODUCT = 'dtype = torch.einsum("ij,jk->ik", x, x).dtype'
RIGHT = {"a Linear": by_linear, "by hand, an einsum": by_hand, "all inside": inside}
WRONG = {
    "the setting": (setting, "the setting, if autocast is on"),
    "the setting, on or off": (
        edited(setting, {"return dtype if enabled else torch.float32": "return dtype"}),
        "the dtype that is set",
    ),
    "the input's": (
        edited(inside, {"return F.relu(torch.bmm(x, x)).dtype": "return x.dtype"}),
        "always float32",
    ),
    "a sum": (edited(by_hand, {PRODUCT: "dtype = x.sum().dtype"}), "always float32"),
    "its name": (lambda make_region: str(by_hand(make_region)), None),
    "no region": (lambda make_region: inside(torch.no_grad), "always float32"),
    "not ended": (
        edited(by_hand, {"region.__exit__(None, None, None)": "pass"}),
        "leaves the region open",
    ),
    "a float64 matrix": (
        edited(by_linear, {LAYER: f"{LAYER}\nlayer, x = layer.double(), x.double()"}),
        None,
    ),
    "the layer made inside": (
        made_inside,
        "inputs in the default dtype",
    ),
}
SIBLINGS = {
    "a softmax": (
        softmax,
        "always float32",
        "you add",
    ),
    "a literal": (lambda make_region: torch.bfloat16, "always bfloat16", "you read"),
}
