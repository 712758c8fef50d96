"""For exercise 2 of chapter 04: many uses of weights in one region, and what is left after it."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import _len_torch_function_stack, _pop_mode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amp_course.checking import Case, call_answer

FP16 = torch.float16
OTHER = {torch.exp}, {torch.mm}, {torch.mv}
WEIGHT = "F.linear(x, weight)"
USES = (  # in one region, in this order; whether the weight was cast before
    (WEIGHT, " under `no_grad`", False),
    (WEIGHT, ", its first use with a graph", False),
    (WEIGHT, " after `x` was changed", True),
    (WEIGHT, " under `no_grad` again", False),
    (WEIGHT, ", used after `no_grad`", True),
    (WEIGHT, ", after a float16 region of another object in this one", True),
    ("torch.mm(x, weight)", ", another op with this weight", True),
    ("F.linear(x, other)", ", where `other` is a float16 weight", False),
    ("F.mse_loss(other, ones)", " with that weight", False),
    ("F.linear(x, frozen)", ", with a frozen weight", False),
    ("F.linear(x, frozen)", " after `frozen` was changed", False),
    ("F.linear(x, leaf)", ", where `leaf` requires grad and is no `nn.Parameter`", False),
    ("F.linear(x, leaf)", " after `x` was changed", True),
    ("F.linear(x, leaf.T)", "", False),
    ("F.linear(hidden, weight)", ", where `hidden` is the output of another layer", False),
    ("F.linear(hidden, weight)", " after `hidden` was changed", False),
    ("F.linear(x, alias)", ", with a detached `alias` of the weight", False),
    (WEIGHT, ", used after an op that raised", True),
    ("torch.addmm(bias, x, frozen)", ", where `bias` is a weight", False),
    ("torch.addmm(bias, x, frozen)", " again", True),
)
LEFT_ON = "the number of modes that are still on after the region"


def left_on(depth: int) -> int:
    """Switch off the modes beyond a depth; return how many there were."""
    return len([_pop_mode() for _ in range(_len_torch_function_stack() - depth)])


class _Copies(TorchDispatchMode):
    """Hold weak references to what kernels make of tensors."""

    def __init__(self, *tensors: Tensor) -> None:
        super().__init__()
        self.memory, self.made = {one.data_ptr() for one in tensors}, list[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        reads = self.memory & {one.data_ptr() for one in leaves}
        if reads and isinstance(result, Tensor) and result.data_ptr() not in self.memory:
            self.made.append(weakref.ref(result))
        return result

    def alive(self) -> int:
        return sum(copy() is not None for copy in self.made)


def region_cases(make: Any, matrix: Tensor, error: Exception | None) -> Iterator[Case]:
    """Use weights in a region, step the optimizer, and use a weight in other regions."""
    x, ones = matrix.clone(), torch.ones(4, 4)
    weight, first, bias = (nn.Parameter(one) for one in (matrix.T + 1, matrix - 1, matrix[1] + 3))
    other, frozen = nn.Parameter(ones.half() + 2**-10), nn.Parameter(matrix + 2, False)
    leaf, alias = (matrix * 2).requires_grad_(), weight.detach().requires_grad_()
    hidden = first * 2.0
    names = {"torch": torch, "F": F, **locals()}
    outputs, casts, caught = list[Tensor](), [0], None
    mode, depth = make(), _len_torch_function_stack()
    try:
        with _Copies(weight, leaf, bias) as copies, mode:
            for line, words, _ in USES:
                inner = make(FP16, *OTHER) if "another object" in words else nullcontext()
                with suppress(RuntimeError), inner:
                    torch.mm(x, x[:3]) if "raised" in words else None
                with torch.set_grad_enabled("under" not in words):
                    case = f"in one region, for `{line}`{words}"
                    outputs.append(call_answer(eval, case, line, names))
                casts.append(len(copies.made))
                for changed in (x, frozen, hidden):
                    changed.data.copy_(1.0 - changed.data)
            if error:
                raise error
    except ZeroDivisionError as same:
        caught = same
    still_on = left_on(depth)
    total = torch.stack([output.float().sum() for output in outputs]).sum()
    if total.requires_grad:
        total.backward()
    if copies.alive():
        gc.collect(1)  # they may be in a cycle
    kept = copies.alive()

    for number, ((line, words, cached), output) in enumerate(zip(USES, outputs, strict=True)):
        compared: dict[str, Any] = {"the output": output.detach()}
        if cached:
            again = casts[number + 1] - casts[number]
            compared["the number of times that the weight is cast again"] = again
        yield Case(f"in one region, for `{line}`{words}", compared)
    leaves = {
        "the weight of the layer before, behind `hidden`,": first,
        "the float16 weight `other`": other,
        "a weight that was first used under `no_grad`": weight,
        "`leaf`, which is no `nn.Parameter`": leaf,
        "`bias`": bias,
        "`alias = weight.detach().requires_grad_()`": alias,
    }
    gradients = {
        f"the gradient of {name}": "None" if one.grad is None else one.grad.clone()
        for name, one in leaves.items()
    }
    lost = [first.grad is None, leaf.grad is None]
    yield Case("after the region", gradients, evidence={"lost": lost})
    case = "after an exception in the region" if error else "after the region"
    yield Case(case, {"the exception that leaves the region": repr(caught), LEFT_ON: still_on})
    with torch.no_grad():
        weight.add_(1.0)
    step = f"after an {'exception and an ' if error else ''}optimizer step"
    for which, later in (("a new region", make()), ("a new region of the same object", mode)):
        with later:
            output = F.linear(x, weight)
        left_on(depth)
        yield Case(f"in {which}, {step}", {"the output": output.detach()})
    yield Case(case, {"the number of copies of the weights that are still there": kept})
