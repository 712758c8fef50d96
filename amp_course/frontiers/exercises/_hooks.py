"""For exercise 5 of chapter 12: calls the two functions of an answer as autograd does,
and sees what is kept in between.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Case, Wrong, call_answer, read_pair, read_tensor
from amp_course.frontiers.exercises._shared import bytes_of, held_tensors

KEPT, GROUP = "the kept bits a number", 64


class Hooks:
    """The two functions of an answer, called as autograd calls them,
    and what came of the last call.
    """

    def __init__(self, answer: Callable[..., Any], model: nn.Module, seed: int) -> None:
        self.answer, self.model, self.last = answer, model, torch.zeros(())
        self.pack, self.unpack = self.make(seed)

    def make(self, seed: int) -> tuple[Any, Any]:
        got = call_answer(
            self.answer, "at the call", self.model, torch.Generator().manual_seed(seed)
        )
        if isinstance(got, torch.autograd.graph.saved_tensors_hooks):
            got = got.pack_hook, got.unpack_hook
        both = read_pair(got, "", "the pair of both functions")
        if not all(map(callable, both)):
            raise Wrong(
                "`compressed_hooks` has to return two functions, the one that packs and the one "
                "that unpacks"
            )
        return both

    def there_and_back(self, case: str, tensor: Tensor) -> Tensor:
        """Return what a tensor becomes."""
        saved = call_answer(
            self.pack, f"{case}, when it packs", tensor.clone().requires_grad_() * 1
        )
        back = call_answer(self.unpack, f"{case}, when it unpacks", saved)
        return read_tensor(back, case, "a tensor", subject="the second function returned")

    def outputs(self, case: str, tensor: Tensor, *, counted: bool = True) -> dict[str, Any]:
        """Pack and unpack a tensor that requires a gradient, if it can;
        return what can be said of any.
        """
        before = tensor.clone()
        given = tensor.clone(memory_format=torch.preserve_format)
        if given.is_floating_point():
            given = given.requires_grad_() * 1  # not a leaf, as activations are
        saved = call_answer(self.pack, f"{case}, when it packs", given)
        kept = [one for one in held_tensors(saved) if one is not given]
        attached = any(one.requires_grad for one in kept)
        bits = 8 * bytes_of(held_tensors(saved)) / max(tensor.numel(), 1)
        back = call_answer(self.unpack, f"{case}, when it unpacks", saved)
        self.last = read_tensor(
            back, case, "a tensor", tensor.shape, "the second function returned"
        )
        outputs: dict[str, Any] = {"the dtype that comes back": self.last.dtype}
        if counted:
            outputs[KEPT] = "at most 3" if bits <= 3 else bits
        outputs["what is kept"] = "requires a gradient" if attached else "does not"
        outputs["the tensor"] = "unchanged" if torch.equal(given.detach(), before) else "changed"
        return outputs


def tensors_of_many_kinds(numbers: torch.Generator) -> dict[str, Tensor]:
    """Return tensors of other dtypes, shapes and strides: the case in words → the tensor."""

    def values(*shape: int) -> Tensor:
        return torch.randn(shape, generator=numbers)

    return {
        "for a bf16 tensor": values(4, 32).bfloat16(),
        "for an fp16 tensor": values(2, 64).half(),
        "for a tensor of shape (3, 47)": values(3, 47),
        "for a tensor of shape ()": values(1)[0],
        "for a transposed tensor": values(48, 16).mT,
        "for 128 equal numbers": torch.full((2, 64), 0.71),
        "for 128 zeros": torch.zeros(128),
        "for a tensor of int64": torch.randint(0, 1000, (2, 64), generator=numbers),
        "for a mask": torch.rand((2, 64), generator=numbers) > 0.5,
    }


def independence(hooks: Hooks, seed: int) -> Case:
    """See whether equal numbers in a group go up independently, whether calls differ,
    and whether the seed decides.
    """
    row = torch.tensor([0.0, *[0.5] * (GROUP - 2), 3.0])
    rows, case = row.repeat(400, 1), "for 400 groups of equal numbers"
    first = hooks.there_and_back(case, rows)
    second = hooks.there_and_back(case, rows)
    hooks.pack, hooks.unpack = hooks.make(seed)
    third = hooks.there_and_back(case, rows)
    hooks.pack, hooks.unpack = hooks.make(seed)
    again = hooks.there_and_back(case, rows)
    ups = (first.reshape(-1, GROUP)[:, 1:-1] > 0.5).sum(1).double()
    spread = float((ups - (GROUP - 2) / 2).square().mean()) / (
        (GROUP - 2) / 4
    )  # 1 on average, with an error of 0.07
    return Case(
        case,
        {
            "two calls": "the same" if torch.equal(first, second) else "different",
            "the same seed": "the same" if torch.equal(third, again) else "different",
            "the spread": "too little" if spread < 0.5 else "too much" if spread > 1.6 else "right",
        },
    )


def layers(hooks: Hooks, model: nn.Module, numbers: torch.Generator) -> dict[str, Any]:
    """Train through linear layers: the gradient of their input depends on the weight alone,
    if nothing lies between.
    """
    first = next(model.children())
    parameter = next(model.parameters())
    x = torch.randn(16, 64, generator=numbers).requires_grad_()
    pull = torch.randn(16, 48, generator=numbers)
    (exact,) = torch.autograd.grad(first(x), x, pull)
    other = torch.randn(48, 64, generator=numbers).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
        y, z = first(x), other * parameter
    part = parameter[1:]
    back = call_answer(
        hooks.unpack,
        "for a part of a parameter, when it unpacks",
        call_answer(hooks.pack, "for a part of a parameter, when it packs", part),
    )
    results = []
    for result, by, inputs, case in (
        (z, torch.ones(48, 64), other, "a product"),
        (y, pull, x, "a linear layer"),
    ):
        results.append(
            call_answer(torch.autograd.grad, f"in the backward pass of {case}", result, inputs, by)[
                0
            ]
        )
    return {
        "the gradient of what a parameter is multiplied by": _close(results[0], parameter.detach()),
        "the gradient of a linear layer's input": _close(results[1], exact),
        "what comes back of a part of a parameter": "right"
        if torch.equal(torch.as_tensor(back), part)
        else "changed",
    }


def _close(got: Tensor, want: Tensor) -> str:
    return (
        "right"
        if torch.allclose(got, want, rtol=1e-4, atol=1e-3 * float(want.abs().max()))
        else "wrong"
    )
