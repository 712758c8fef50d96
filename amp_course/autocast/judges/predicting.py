"""Judge twelve predictions by running each line under a real `torch.autocast`; no table says what is right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Wrong
from amp_course.checking.values import dtype_name

RAISES = "raises"

SETUP = """\
a = torch.randn(4, 4)                 # float32
h = torch.randn(4, 4).bfloat16()      # bfloat16
d = torch.randn(4, 4).double()        # float64
i = torch.arange(16).view(4, 4)       # int64
layer, norm = nn.Linear(4, 4), nn.LayerNorm(4)

def outside(module, x):
    with torch.autocast("cpu", enabled=False):
        return module(x)

def gradient():
    layer(a).sum().backward()
    return layer.weight.grad
"""


@dataclass(frozen=True)
class Question:
    """A line of code whose dtype is asked for, and for each tempting answer why it is not so."""

    name: str
    code: str
    mistakes: Mapping[str, str]


QUESTIONS = (
    Question(
        "mm",
        "torch.mm(a, a)",
        {
            "float32": "both matrices are float32, but a matmul is on autocast's lower list: that is where autocast saves time. "
            "Both are cast first, and the product has the region's dtype",
            RAISES: "autocast casts both matrices alike, so nothing clashes",
        },
    ),
    Question(
        "add",
        "h + a",
        {
            "bfloat16": "addition is on no list, so autocast leaves it alone and PyTorch's type promotion decides: of two "
            "floating dtypes, the wider one",
            RAISES: "elementwise ops promote mixed dtypes, with or without autocast",
        },
    ),
    Question(
        "in_place",
        "a.clone().add_(h)",
        {
            "bfloat16": "an in-place op writes into memory that already exists, so the tensor keeps its dtype",
            RAISES: "the narrower `h` is promoted first. What PyTorch refuses is the other direction, such as writing "
            "floats into an integer tensor",
        },
    ),
    Question(
        "softmax",
        "torch.softmax(h, dim=-1)",
        {
            "float32": "that is CUDA's policy. On the CPU softmax is on no list and keeps the dtype of its input",
            RAISES: "softmax accepts bfloat16",
        },
    ),
    Question(
        "norm",
        "norm(layer(a))",
        {
            "float32": "that is CUDA's policy, and the norm's weights really are float32. On the CPU layer_norm is on no "
            "list, and its kernel returns the dtype of its input, which `layer` has lowered",
            RAISES: "the CPU's layer_norm takes a bfloat16 input with float32 weights",
        },
    ),
    Question(
        "cat",
        "torch.cat([a, h])",
        {
            "bfloat16": "cat is on the list that promotes to the widest dtype: one float32 tensor makes the result float32",
            RAISES: "cat promotes different dtypes to the widest one, with or without autocast",
        },
    ),
    Question(
        "loss",
        "F.mse_loss(h, h)",
        {
            "bfloat16": "losses are on the fp32 list: a mean of many squares is what 16 bits are worst at, so autocast casts "
            "both inputs up",
            RAISES: "the inputs are cast up to float32 and the loss is computed there",
        },
    ),
    Question(
        "double",
        "d @ d",
        {
            "bfloat16": "a matmul is on the lower list, but autocast casts only float32 and the 16-bit formats. If "
            "you use float64 you have a reason, so it stays",
            "float32": "nothing on the lower list gives float32, and float64 is not lowered at all",
            RAISES: "both matrices are float64, and stay float64",
        },
    ),
    Question(
        "mixed",
        "d @ a",
        {
            "float64": "a matmul does not promote: outside autocast `d @ a` fails too. Inside, one side is lowered and the "
            "other is left alone, so they still differ",
            "float32": "autocast does not meet in the middle: it lowers the float32 side and leaves float64 alone",
            "bfloat16": "only the float32 side is lowered. float64 is left alone, and a matmul needs one dtype",
        },
    ),
    Question(
        "integers",
        "i @ i",
        {
            "bfloat16": "autocast casts floating-point tensors only: integers are ids, masks and counts, and stay integers",
            "float32": "no list turns integers into floats",
            "float64": "no list turns integers into floats",
            RAISES: "the CPU multiplies integer matrices, and autocast leaves them alone",
        },
    ),
    Question(
        "island",
        "outside(layer, layer(a))",
        {
            "float32": "nothing is cast in the nested region. Its input was lowered by the first `layer`, the weight is "
            "float32, and a linear layer needs both to be the same: an island needs `.float()` on its input",
            "bfloat16": "`enabled=False` holds until the inner block ends, so nothing lowers the float32 weight there, and a "
            "linear layer needs input and weight to have the same dtype",
        },
    ),
    Question(
        "gradient",
        "gradient()",
        {
            "bfloat16": "the layer ran in bfloat16, but the cast of its weight is an op that autograd records: backward casts "
            "the gradient back to the dtype of the weight itself, which is float32 throughout",
            RAISES: "backward inside the region is a mistake, but it does not raise",
        },
    ),
)

TWELVE = SETUP + "\n" + "\n".join(f"{question.name + ':':10} {question.code}" for question in QUESTIONS)

_SHORT = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "fp64": "float64",
    "double": "float64",
    "int": "int64",
}


def run(question: Question) -> str:
    """Run a question's line under bf16 autocast on the CPU; return the dtype's name, or "raises"."""
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    exec(SETUP, names)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            result = eval(question.code, names)
        except RuntimeError:
            return RAISES
    assert isinstance(result, Tensor)
    return dtype_name(result.dtype)


def judge(answer: Any) -> None:
    """`{"mm": torch.bfloat16, …}`, each a dtype or "raises", against what the line does when it runs."""
    names = [question.name for question in QUESTIONS]
    if not isinstance(answer, Mapping) or set(answer) != set(names):
        raise Wrong(f"the answer is a dict with the keys {', '.join(names)}, each a torch dtype or {RAISES!r}")
    said = {name: _said(name, answer[name]) for name in names}
    wrong = [question for question in QUESTIONS if said[question.name] != run(question)]
    if not wrong:
        return
    first = wrong[0]
    why = first.mistakes.get(said[first.name], "neither its inputs nor autocast know that dtype")
    right = f" ({len(names) - len(wrong)} of {len(names)} are right.)"
    verb = "does not raise" if said[first.name] == RAISES else f"does not give {said[first.name]}"
    raise Wrong(f"{first.name}, `{first.code}`, {verb}: {why}.{right}")


def _said(name: str, value: Any) -> str:
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if not isinstance(value, str):
        raise Wrong(f"{name}: write a dtype such as torch.float32, or {RAISES!r}; yours is a {type(value).__name__}")
    text = value.strip().lower().removeprefix("torch.")
    text = _SHORT.get(text, text)
    if text != RAISES and not isinstance(getattr(torch, text, None), torch.dtype):
        raise Wrong(f"{name}: write a dtype such as torch.float32, or {RAISES!r}; yours is {value[:40]!r}")
    return text
