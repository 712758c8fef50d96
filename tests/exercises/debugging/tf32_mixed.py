"""Answers to `tf32_mixed`, written without a look at its table of mistakes."""

import contextlib

from amp_course.checking import edited
from amp_course.debugging.clinic.causes import cause


@contextlib.contextmanager
def precision(matmul, name):
    was = matmul.fp32_precision
    matmul.fp32_precision = name
    try:
        yield
    finally:
        matmul.fp32_precision = was


def newer(model, inputs, matmul):
    cause("tf32-settings-mixed")
    was = matmul.fp32_precision
    matmul.fp32_precision = "tf32"
    fast = float(model(inputs).detach().mean())
    matmul.fp32_precision = "ieee"
    full = float(model(inputs).detach().mean())
    matmul.fp32_precision = was
    return [(True, fast), (False, full)]


def managed(model, inputs, matmul):
    cause("tf32-settings-mixed")
    with precision(matmul, "tf32"):
        fast = model(inputs).mean()
    with precision(matmul, "ieee"):
        full = model(inputs).mean()
    return ((True, fast), (False, full))


CAUSE, WAS, AFTER = (
    'cause("tf32-settings-mixed")',
    "was = matmul.fp32_precision",
    "matmul.fp32_precision = was",
)
FAST, FULL = 'matmul.fp32_precision = "tf32"', 'matmul.fp32_precision = "ieee"'
RETURN = "return [(True, fast), (False, full)]"
OLDER = {FAST: "matmul.allow_tf32 = True", FULL: "matmul.allow_tf32 = False"}
RIGHT = {
    "the newer name": newer,
    "a context manager": managed,
    "ints": edited(newer, {RETURN: "return [(1, fast), (0, full)]"}),
    "puts it back at once": edited(newer, {FULL: f"{AFTER}\n{FULL}"}),
    "older name, read by the newer": edited(
        newer, {**OLDER, AFTER: 'matmul.allow_tf32 = was == "tf32"'}
    ),
}
WRONG = {
    "another cause": (edited(newer, {CAUSE: 'cause("beyond-fp16")'}), None),
    "no cause": (edited(newer, {CAUSE: "pass"}), None),
    "older writes": (edited(newer, OLDER), "sets by the older name"),
    "older first write": (
        edited(newer, {FAST: "matmul.allow_tf32 = True"}),
        "only the read is gone",
    ),
    "none for full": (
        edited(newer, {FULL: 'matmul.fp32_precision = "none"'}),
        "none for full fp32",
    ),
    "sets nothing": (edited(newer, {FAST: "pass", FULL: "pass"}), "sets it for all of torch"),
    "torch's own": (
        edited(
            newer,
            {
                FAST: "import torch\ntorch.backends.cuda.matmul.allow_tf32 = True",
                FULL: "torch.backends.cuda.matmul.allow_tf32 = False",
            },
        ),
        "sets it for all of torch",
    ),
    "not put back": (edited(newer, {AFTER: "pass"}), "never puts it back"),
    "puts none back": (edited(newer, {AFTER: 'matmul.fp32_precision = "none"'}), None),
    "the first mean twice": (edited(newer, {RETURN: "return [(True, fast), (False, fast)]"}), None),
    "always TF32 afterwards": (edited(newer, {AFTER: FAST}), None),
    "means only": (edited(newer, {RETURN: "return [fast, full]"}), None),
    "another precision": (edited(newer, {FULL: 'matmul.fp32_precision = "bf16"'}), None),
    "flags swapped": (edited(newer, {RETURN: "return [(False, fast), (True, full)]"}), None),
}
