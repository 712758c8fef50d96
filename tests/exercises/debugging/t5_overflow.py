"""Answers to `t5_overflow`, written without a look at its table of mistakes."""

import torch
from torch.nn import functional as F

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


def in_fp32(block, hidden):
    cause("beyond-fp16", "mm")
    x = block.norm(hidden)
    x = block.wi(x)
    x = F.relu(x)
    with torch.autocast("cpu", enabled=False):
        return hidden + F.linear(x.float(), block.wo.weight)


CAUSE, END = 'cause("beyond-fp16", "mm")', "return hidden + F.linear(x.float(), block.wo.weight)"
WI, OFF = "x = block.wi(x)", 'with torch.autocast("cpu", enabled=False):'
BY_HAND = 'with torch.autocast("cpu", enabled=False):\n    x = x.half() @ block.wi.weight.half().T'
RIGHT = {
    "in fp32": in_fp32,
    "other dtype": edited(in_fp32, {OFF: 'with torch.autocast("cpu", dtype=torch.bfloat16):'}),
    "smaller for the matmul": edited(
        in_fp32, {OFF: "if True:", END: "return hidden + block.wo(x / 64).float() * 64"}
    ),
    "wi by hand": edited(in_fp32, {WI: BY_HAND}),
}
WRONG = {
    "another cause": (edited(in_fp32, {CAUSE: 'cause("division-by-zero")'}), None),
    "no cause": (edited(in_fp32, {CAUSE: "pass"}), None),
    "casts the input": (edited(in_fp32, {OFF: "if True:"}), "unchanged"),
    "enlarged in fp16": (
        edited(in_fp32, {OFF: "if True:", END: "return hidden + block.wo(x / 64) * 64"}),
        "unchanged",
    ),
    "forgets to cast": (edited(in_fp32, {END: END.replace("x.float()", "x")}), None),
    "largest of fp16": (edited(in_fp32, {OFF: "if True:", END: f"{END}.nan_to_num()"}), "clamps"),
    "half of the sum": (edited(in_fp32, {END: f"{END} / 2"}), None),
    "wi in fp32": (edited(in_fp32, {WI: f"{OFF}\n    x = block.wi(x.float())"}), "all in fp32"),
    "float inside the region": (
        edited(
            in_fp32, {OFF: "if True:", END: f"{END}.float()".replace("hidden", "hidden.float()")}
        ),
        "casts the input of wo",
    ),
    "an island for a GPU": (
        edited(
            in_fp32,
            {
                OFF: 'with torch.autocast("cuda", enabled=False):',
                END: END.replace("hidden", "hidden.float()"),
            },
        ),
        "casts the input of wo",
    ),
    "hidden in fp16": (
        edited(in_fp32, {CAUSE: f"{CAUSE}\nhidden = hidden.half()"}),
        "the norm of hidden in fp16",
    ),
    "adds hidden in fp16": (
        edited(in_fp32, {END: END.replace("hidden", "hidden.half()")}),
        "hidden in fp16",
    ),
    "clamps the sum": (
        edited(
            in_fp32, {OFF: "if True:", END: "return (hidden + block.wo(x)).clamp(-65504, 65504)"}
        ),
        "clamps the sum",
    ),
    "fp32 weights": (
        edited(in_fp32, {OFF: "if True:", END: "return hidden + block.wo.float()(x)"}),
        "unchanged",
    ),
}
