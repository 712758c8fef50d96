"""Exercise 1 of chapter 04: the dtypes of twelve lines, against what the lines do when they run."""

import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, read_dict

card = Card(
    chapter="autocast",
    name="predict_dtypes",
    number=1,
    title="Predict twelve results",
    difficulty=2,
    importance=4,
    minutes=10,
    lines=12,
    takes="value",
    task="Which dtype does each of twelve lines give under bf16 autocast on the CPU? Fill in the "
    'dict `predict_dtypes`: a torch dtype for each line, or "raises" if the line raises an '
    "exception. The check runs the lines.",
    hints=(
        "Is the line's op on one of autocast's lists? What does PyTorch do if not? Which tensors "
        "stay as they are?",
        "Matmuls and linear layers are lowered, losses go to float32, cat goes to the widest. On "
        "the CPU, softmax and layer_norm are on no list. float64 and integers are never cast, and "
        "a matmul never promotes.",
        "Two of the twelve raise. One mixes a dtype that is lowered with one that is not, the "
        "other is in a region that is off.",
    ),
    why="Most surprises with AMP are one of these twelve: an op on no list, a tensor that is not "
    "cast, a region that is off.",
    alternative="run each line under `torch.autocast` and print `.dtype`, as the check does.",
)

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
# A line's name → the line, and why each tempting answer is wrong
LINES = {
    "mm": (
        "torch.mm(a, a)",
        {
            "raises": "autocast casts both matrices to the same dtype, so nothing clashes",
            "float32": "a matmul is on autocast's lower list, so both matrices are cast, and the "
            "product has the region's dtype",
        },
    ),
    "add": (
        "h + a",
        {
            "raises": "elementwise ops promote mixed dtypes, with or without autocast",
            "bfloat16": "addition is on no list, so PyTorch's type promotion decides, and takes "
            "the wider of two such dtypes",
        },
    ),
    "in_place": (
        "a.clone().add_(h)",
        {
            "bfloat16": "an in-place op writes into the tensor's own memory, which keeps its dtype",
            "raises": "`h` is promoted first. PyTorch refuses only a result of another kind, such "
            "as floats in an integer tensor",
        },
    ),
    "softmax": (
        "torch.softmax(h, dim=-1)",
        {
            "raises": "softmax accepts bfloat16",
            "float32": "that is CUDA's policy. On the CPU softmax is on no list and keeps the "
            "dtype of its input",
        },
    ),
    "norm": (
        "norm(layer(a))",
        {
            "raises": "the CPU's layer_norm takes a bfloat16 input with float32 weights",
            "float32": "that is CUDA's policy. On the CPU layer_norm is on no list, and its input "
            "was lowered by `layer`",
        },
    ),
    "cat": (
        "torch.cat([a, h])",
        {
            "raises": "cat promotes different dtypes to the widest one, with or without autocast",
            "bfloat16": "cat is on the list that promotes to the widest dtype, so one float32 "
            "tensor makes the result float32",
        },
    ),
    "loss": (
        "F.mse_loss(h, h)",
        {
            "raises": "the inputs are cast up to float32 and the loss is computed there",
            "bfloat16": "losses are on the fp32 list, because a mean of many squares needs it, so "
            "both inputs are cast up",
        },
    ),
    "double": (
        "d @ d",
        {
            "raises": "both matrices are float64, and stay float64",
            "float32": "float64 is never lowered",
            "bfloat16": "a matmul is on the lower list, but autocast casts only float32 and the "
            "16-bit formats, so float64 stays",
        },
    ),
    "mixed": (
        "d @ a",
        {
            "bfloat16": "only the float32 side is lowered, and a matmul needs one dtype",
            "float64": "a matmul does not promote, and autocast lowers only the other side, so the "
            "dtypes still differ",
            "float32": "autocast lowers the float32 side and leaves float64 alone",
        },
    ),
    "integers": (
        "i @ i",
        {
            "raises": "the CPU multiplies integer matrices",
            "float32": "no list turns integers into floats",
            "bfloat16": "autocast casts floating-point tensors only, and integers, which are ids, "
            "masks and counts, stay integers",
        },
    ),
    "island": (
        "outside(layer, layer(a))",
        {
            "bfloat16": "in the inner block, nothing lowers the float32 weight",
            "float32": "nothing is cast in the nested region, where a bfloat16 input meets a "
            "float32 weight",
        },
    ),
    "gradient": (
        "gradient()",
        {
            "raises": "backward inside the region is a mistake, but it does not raise",
            "bfloat16": "the layer ran in bfloat16, but backward also goes through the cast of "
            "its weight, back to float32",
        },
    ),
}
TWELVE = SETUP + "\n" + "\n".join(f"{f'{name}:':10} {code}" for name, (code, _) in LINES.items())


def right(truth: dict[str, str]) -> dict[str, str]:
    """Return what the lines give when they run."""
    return truth


def run_lines() -> dict[str, str]:
    """Run the twelve lines under bf16 autocast; return the name of each dtype, or "raises"."""
    names: dict[str, Any] = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    exec(SETUP, names)
    dtypes = {}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for name, (code, _) in LINES.items():
            try:
                dtypes[name] = str(eval(code, names).dtype).removeprefix("torch.")
            except RuntimeError:
                dtypes[name] = "raises"
    return dtypes


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Read the twelve predictions, in the order of the lines."""
    truth = run_lines()
    given = answer(truth) if callable(answer) else answer
    values = read_dict(given, LINES, subject="`predict_dtypes` is")
    dtypes = {name: _read(name, values[name]) for name in LINES}
    count = sum(dtypes[name] == truth[name] for name in LINES)
    outputs = {f"`{code}`": dtypes[name] for name, (code, _) in LINES.items()}
    yield Case("", outputs, {"count": count})


def _read(name: str, value: Any) -> str:
    """Return the name of a dtype: torch.float32, "float32" and "fp32" are the same."""
    text = str(value).strip().lower().removeprefix("torch.")
    if text == "raises":
        return text
    short = text.replace("bf16", "bfloat16").replace("fp", "float") if text != "int" else "int64"
    dtype = getattr(torch, short, None)
    if not isinstance(value, (torch.dtype, str)) or not isinstance(dtype, torch.dtype):
        raise Wrong(f'{name}: write a dtype such as torch.float32, or "raises", not {value!r:.40}')
    return str(dtype).removeprefix("torch.")


mistakes = [
    Mistake(
        f"{name}: {value}",
        f"{name}: `{code}` does not {'raise' if value == 'raises' else f'give {value}'}: {why}. "
        "({count} of 12 are right.)",
        answer=lambda truth, name=name, value=value: truth | {name: value},
        violates="raises an exception" if value == "raises" else "Which dtype does each",
    )
    for name, (code, options) in LINES.items()
    for value, why in options.items()
]

predict_dtypes = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        f"`{code}`": f"{name}: `{code}` does not give {{got}}. ({{count}} of 12 are right.)"
        for name, (code, _) in LINES.items()
    },
)
