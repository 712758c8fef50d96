"""Exercise 2 of chapter 04: autocast as a mode, with its cache, its gradients and its exit."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _len_torch_function_stack
from torch.utils._pytree import tree_leaves, tree_map

from amp_course.autocast.exercises._region import FP16, LEFT_ON, OTHER, left_on, region_cases
from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    alike,
    call_answer,
    read_tensor,
)
from amp_course.kit.dtypes import dtype_name

card = Card(
    chapter="autocast",
    name="mini_autocast",
    number=2,
    title="Write autocast",
    difficulty=4,
    importance=4,
    minutes=30,
    lines=25,
    task="For `mini_autocast`, write the class `MiniAutocast(dtype, lower, fp32, widest)`, a "
    "`TorchFunctionMode` that does for three lists what `torch.autocast` does for its own: in the "
    "`with` block, their ops run in `dtype`, in float32, or in the widest dtype among their "
    "tensors. A weight (a leaf that requires grad) is cast once per region, and gets its "
    "gradient. After the region, even if an exception ended it, nothing is cast and nothing is "
    "kept.",
    hints=(
        "Start without the cache: cast the tensors in `args` and `kwargs`, return `func(*args, "
        "**kwargs)`. Which tensors stay uncast?",
        "`tree_map(cast, (args, kwargs))` reaches tensors in lists and keywords. Cast float32, "
        "bfloat16 and float16 only, with `.to(dtype)`, which autograd records. For the widest "
        "list, cast all to float32 if one is float32, else none.",
        "The cache is a dict from (parameter, dtype) to copy, for a leaf that requires grad, "
        "and only while `torch.is_grad_enabled()`. `__exit__` empties it and returns "
        "`super().__exit__(*error)`.",
    ),
    why="Autocast is three lists, one cast and one dict. It knows nothing about your model.",
    alternative="`functools.reduce(torch.promote_types, dtypes)` for the widest list; "
    "`(id(parameter), dtype)` as the key.",
)

# The lists, by the functions that a mode is given; `a @ b` arrives as Tensor.matmul.
LOWER_OPS = frozenset({F.linear, F.conv2d, F.scaled_dot_product_attention, torch.einsum})
LOWER_OPS |= {torch.addmm, torch.mm, Tensor.mm, torch.bmm, Tensor.bmm}
LOWER_OPS |= {torch.matmul, Tensor.matmul, Tensor.__matmul__}
FP32_OPS = frozenset({F.mse_loss, F.l1_loss, F.nll_loss, F.cross_entropy, torch.cdist, torch.prod})
FP32_OPS |= {F.binary_cross_entropy_with_logits}
WIDEST_OPS = frozenset({torch.cat, torch.stack, torch.index_copy, Tensor.index_copy})

BF16 = torch.bfloat16
OWN = LOWER_OPS, FP32_OPS, WIDEST_OPS


class MiniAutocast(TorchFunctionMode):
    """The right answer."""

    def __init__(self, dtype: Any, lower: Any, fp32: Any, widest: Any) -> None:
        super().__init__()
        self.dtype, self.lower, self.fp32, self.widest = dtype, lower, fp32, widest
        self.copies: Any = {}  # parameter → its copy, until the region ends

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        values = (args, kwargs or {})
        wide = any(getattr(leaf, "dtype", None) == torch.float32 for leaf in tree_leaves(values))
        if func in self.lower:
            values = tree_map(lambda value: self.cast(value, self.dtype), values)
        elif func in self.fp32 or (func in self.widest and wide):
            values = tree_map(lambda value: self.cast(value, torch.float32), values)
        return func(*values[0], **values[1])

    def cast(self, value: Any, dtype: Any) -> Any:
        """Return a tensor in another dtype, or the parameter's copy if there is one."""
        castable = (torch.float32, torch.bfloat16, torch.float16)
        if not isinstance(value, Tensor) or value.dtype not in castable:
            return value
        if not (value.is_leaf and value.requires_grad and torch.is_grad_enabled()):
            return value.to(dtype)
        key: Any = (value, dtype)
        if key not in self.copies:
            self.copies[key] = value.to(dtype)
        return self.copies[key]

    def __exit__(self, *error: Any) -> None:
        self.copies.clear()
        return super().__exit__(*error)


LINES = (
    "torch.mm(ids, ids)",
    "fp64 @ fp64",
    "torch.mm(fp32, fp32)",
    "torch.mm(fine, ones)",
    "torch.mm(fp16, fp16)",
    "fp32.exp()",
    'torch.einsum("ij,jk->ik", pair)',
    'torch.einsum("ij,jk->ik", (fp32, fp32))',
    "F.mse_loss(large, -large)",
    "torch.arange(3)",
    "torch.cat([low, low])",
    "torch.cat([low, fp32])",
    "torch.cat([fp32, low])",
    "torch.cat([low, low, fp32])",
    "low * row[0]",
    "torch.cat([fp16, fp16])",
    "torch.cat([ids, ids])",
    "torch.index_copy(low, 0, classes, low)",
    "F.mse_loss(fp64, fp64)",
)
FP16_LINES = LINES[2], LINES[7], "bf16 @ bf16", "F.mse_loss(bf16, -bf16)"
OTHER_LINES = "torch.exp(fp32)", "torch.exp(weight)", LINES[5], "fp32 @ fp32", "torch.mv(low, row)"
RAISING_LINES = (  # where a cast is forgotten
    "F.mse_loss(fp16, -fp16)",
    "F.linear(fp32, weight=fp32, bias=row)",
    "low @ fp32",
    "torch.index_copy(low, 1, classes, fp32)",
    "torch.index_copy(low, 1, index=classes, source=fp32)",
    "F.scaled_dot_product_attention(0 * fp32, fp32, fp32, mask)",
)
REGIONS = (
    (BF16, OWN, LINES, ""),
    (FP16, OWN, FP16_LINES, ""),
    (BF16, OTHER, OTHER_LINES, " with the lists `{torch.exp}`, `{torch.mm}` and `{torch.mv}`"),
    (BF16, OWN, RAISING_LINES, ""),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Single ops in several regions, then many uses of weights in one region and after it."""
    # Whole numbers, whose sums are exact
    numbers = [draw.choice((-1.0, 1.0, 2.0)) * (number % 7 - 3) for number in range(16)]
    matrix = torch.tensor(numbers).view(4, 4)
    for dtype, lists, lines, where in REGIONS:
        for line in lines:
            names, before = _names(matrix, dtype), _names(matrix, dtype)
            case = f"for `{line}` in a region of {dtype_name(dtype)}{where}"
            depth = _len_torch_function_stack()
            mode = call_answer(answer, case, dtype, *lists)
            if not isinstance(mode, TorchFunctionMode):
                raise Wrong("`MiniAutocast` has to inherit from `TorchFunctionMode`")
            with mode:
                on = _len_torch_function_stack() > depth
                got = call_answer(eval, case, line, {"torch": torch, "F": F, **names})
            still_on, result = left_on(depth), read_tensor(got, case, subject="the op returned")
            changed = [f"`{name}`" for name in names if not alike(names[name], before[name])]
            outputs = {
                "what was changed": (*changed, "nothing")[0],
                "the dtype of the result": dtype_name(result.dtype),
                "the norm of the result": result.double().norm().item(),
                LEFT_ON: still_on,
            }
            overflowed = not result.isfinite().all()
            yield Case(case, outputs, evidence={"switched on": on, "overflowed": overflowed})
    for error in (None, ZeroDivisionError()):
        yield from region_cases(lambda *other: answer(*(other or (BF16, *OWN))), matrix, error)


def _names(matrix: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Return the tensors that the lines name."""
    return {
        "fp32": matrix.clone(),
        "fp64": matrix.double(),
        "fp16": matrix.half(),
        "bf16": matrix.bfloat16(),
        "low": matrix.T.to(dtype),
        "row": matrix[0].clone(),
        "ids": torch.arange(4).diag(),
        "classes": torch.arange(4),
        "fine": torch.tensor([[1 + 2**-9, -1.0]]),
        "ones": torch.ones(2, 1),
        "large": torch.tensor([150.0, 0.0, 0.0, 0.0], dtype=dtype),
        "pair": [matrix.clone(), matrix * 2],
        "weight": nn.Parameter(matrix.clone()),
        "mask": torch.eye(4).bool(),
    }


VALUES = "values = (args, kwargs or {})"
IF_LOWER = "if func in self.lower:"
IF_FP32 = "elif func in self.fp32 or (func in self.widest and wide):"
TO_LOWER = "values = tree_map(lambda value: self.cast(value, self.dtype), values)"
TO_FP32 = "values = tree_map(lambda value: self.cast(value, torch.float32), values)"
EACH = "values = [self.cast(one, self.dtype) for one in args]"
CALL = "func(*values[0], **values[1])"
IS_OTHER = "if not isinstance(value, Tensor) or value.dtype not in castable:"
IS_WEIGHT = "if not (value.is_leaf and value.requires_grad and torch.is_grad_enabled()):"
KEY = "key: Any = (value, dtype)"
LEAVE = "return super().__exit__(*error)"

mistakes = [
    Mistake(
        "kwargs may be None",
        "`kwargs` is None where an op has no keyword arguments. Write `**(kwargs or {{}})`",
        edits={VALUES: "values = (args, kwargs)"},
    ),
    Mistake(
        "casts integers",
        "integer tensors are cast, such as ids and masks. Cast only float32 and 16-bit dtypes",
        edits={IS_OTHER: "if not isinstance(value, Tensor):"},
    ),
    Mistake(
        "casts float64",
        "float64 is cast, but autocast leaves it alone. Cast only float32 and 16-bit dtypes",
        edits={IS_OTHER: "if not isinstance(value, Tensor) or not value.is_floating_point():"},
    ),
    Mistake(
        "casts nothing",
        "nothing is cast. Where `func` is on a list, cast its arguments before you call it",
        edits={IF_LOWER: "if False:", IF_FP32: "elif False:"},
    ),
    Mistake(
        "no lower list",
        "an op of the lower list runs in float32. Cast its arguments to `dtype`",
        edits={IF_LOWER: "if False:"},
        violates="their ops run in `dtype`",
    ),
    Mistake(
        "casts the result only",
        "only the result is cast, so the op runs in float32. Cast the arguments, then call `func`",
        edits={
            TO_LOWER: f"return self.cast({CALL}, self.dtype)",
            TO_FP32: f"return self.cast({CALL}, torch.float32)",
        },
    ),
    Mistake(
        "forgets keyword arguments",
        "keyword arguments are not cast. Call `tree_map(cast, kwargs)`, too",
        edits={TO_LOWER: f"args = {TO_LOWER[9:-7]}args)\nvalues = args, values[1]"},
    ),
    Mistake(
        "forgets lists",
        "tensors in lists and tuples are not cast. `torch.utils._pytree.tree_map` reaches them",
        edits={TO_LOWER: f"{EACH}, {TO_LOWER[9:-7]}values[1])"},
    ),
    Mistake(
        "casts the elements of args only",
        "tensors in lists and keyword arguments are not cast. Use `tree_map(cast, (args, kwargs))`",
        edits={
            TO_LOWER: f"{EACH}, values[1]",
            TO_FP32: f"{EACH.replace('self.dtype', 'torch.float32')}, values[1]",
        },
    ),
    Mistake(
        "no fp32 list",
        "ops of the fp32 list run in 16 bits. Cast their arguments to float32",
        edits={IF_FP32: IF_FP32.replace("self.fp32", "()")},
        violates="in float32",
    ),
    Mistake(
        "no widest list",
        "an op of the widest list gets two dtypes. If one tensor is float32, cast all to it",
        edits={IF_FP32: "elif func in self.fp32:"},
        violates="in the widest dtype among their tensors",
    ),
    Mistake(
        "casts unlisted ops",
        "an op on none of the three lists is cast. Leave its arguments unchanged",
        edits={IF_LOWER: "if func not in self.fp32 | self.widest:"},
    ),
    Mistake(
        "detaches",
        "weights get no gradient. Make their copies with an op that autograd records, `.to(dtype)`",
        edits={"self.copies[key] = value.to(dtype)": "self.copies[key] = value.detach().to(dtype)"},
        violates="gets its gradient",
    ),
    Mistake(
        "detaches activations",
        "earlier layers get no gradient. Cast activations with an op that autograd records",
        edits={"return value.to(dtype)": "return value.detach().to(dtype)"},
    ),
    Mistake(
        "caches under no_grad",
        "a copy made under `no_grad` has no graph. Cache only while `torch.is_grad_enabled()`",
        edits={IS_WEIGHT: "if not (value.is_leaf and value.requires_grad):"},
    ),
    *(
        Mistake(
            name,
            "inputs or activations are cached, too, so their old values are used. Cache only "
            "leaves that require grad",
            edits={IS_WEIGHT: f"if not ({cached}):"},
        )
        for name, cached in {
            "caches all leaves": "value.is_leaf and torch.is_grad_enabled()",
            "caches every tensor": "True",
            "caches activations": "value.requires_grad and torch.is_grad_enabled()",
        }.items()
    ),
    Mistake(
        "caches nn.Parameter only",
        "a leaf that is no `nn.Parameter` is cast at each use. Cache all that require grad",
        edits={IS_WEIGHT: IS_WEIGHT.replace("is_leaf", "__class__ is nn.Parameter")},
    ),
    Mistake(
        "a cache without the dtype",
        "a weight's copy is used for another dtype. Use `(parameter, dtype)` as the key",
        edits={KEY: "key = value"},
    ),
    Mistake(
        "casts at each use",
        "the weight is cast at each use. Keep its copy until the region ends",
        edits={KEY: "return value.to(dtype)\nkey = 0"},
        violates="is cast once per region",
    ),
    Mistake(
        "never leaves",
        "the mode stays on after its `with` block. Call `super().__exit__(*error)` in `__exit__`",
        edits={LEAVE: "return None"},
        violates="nothing is cast",
    ),
    Mistake(
        "keeps its copies",
        "the copies outlive their region, so the next uses old weights. Clear them in `__exit__`",
        edits={"self.copies.clear()": "pass"},
        violates="nothing is kept",
    ),
    Mistake(
        "swallows exceptions",
        "an exception in the region disappears: `__exit__` returns a true value. Return None",
        edits={LEAVE: "super().__exit__(*error)\nreturn True"},
    ),
    Mistake(
        "stays on after an exception",
        "after an exception the mode stays on. Call `super().__exit__(*error)` then, too",
        edits={LEAVE: f"if not error[0]:\n    {LEAVE}"},
        violates="an exception ended it",
    ),
]

mini_autocast = Exercise(
    card,
    MiniAutocast,
    cases,
    mistakes,
    tolerance=5e-4,
    messages={"what was changed": "{case}, an op changes the caller's own {got}. Cast a copy"},
)
