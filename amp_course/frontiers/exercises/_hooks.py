"""For exercise 5 of chapter 12: calls the two functions of an answer as autograd does."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from amp_course.checking import Case, Wrong, call_answer, read_pair, read_tensor
from amp_course.frontiers.exercises._shared import held_tensors

GROUP = 64


class Hooks:
    """The two functions that an answer returns."""

    def __init__(self, answer: Callable[..., Any], model: nn.Module, seed: int) -> None:
        got = call_answer(answer, "at the call", model, torch.Generator().manual_seed(seed))
        if isinstance(got, saved_tensors_hooks):
            got = got.pack_hook, got.unpack_hook
        self.pack, self.unpack = read_pair(got, "", "the pair of both functions")
        if not (callable(self.pack) and callable(self.unpack)):
            raise Wrong(
                "`compressed_hooks` has to return two functions: one that packs and one that "
                "unpacks"
            )

    def call(self, case: str, tensor: Tensor) -> tuple[Any, Any]:
        """Return what is kept of a tensor, and what comes back."""
        kept = call_answer(self.pack, f"{case}, when it packs", tensor)
        return kept, call_answer(self.unpack, f"{case}, when it unpacks", kept)

    def round_trip(self, case: str, tensor: Tensor) -> tuple[Tensor, Any, dict[str, Any]]:
        """Return what comes back of a tensor, what is kept of it, and the outputs of any case."""
        given = tensor.clone()
        if given.is_floating_point():
            given = given.requires_grad_() * 1  # not a leaf, as activations are
        kept, got = self.call(case, given)
        back = read_tensor(got, case, "a tensor", tensor.shape, "the second function returned")
        attached = any(one.requires_grad for one in held_tensors(kept) if one is not given)
        return (
            back,
            kept,
            {
                "the dtype that comes back": back.dtype,
                "what is kept": "requires a gradient" if attached else "does not",
                "the tensor": "unchanged" if torch.equal(given, tensor) else "changed",
            },
        )


def independence(answer: Callable[..., Any], model: nn.Module, seed: int) -> Case:
    """Compare two calls, two generators of one seed, and the numbers of one group."""
    case = "for 400 groups of equal numbers"
    rows = torch.tensor([0.0, *[0.5] * (GROUP - 2), 3.0]).repeat(400, 1)
    hooks = Hooks(answer, model, seed)
    first, second, again = (
        one.round_trip(case, rows)[0] for one in (hooks, hooks, Hooks(answer, model, seed))
    )
    ups = (first.reshape(-1, GROUP)[:, 1:-1] > 0.5).sum(1).double()
    # The variance over that of independent draws: 1 on average, with an error of 0.07
    spread = float((ups - (GROUP - 2) / 2).square().mean()) / ((GROUP - 2) / 4)
    return Case(
        case,
        {
            "two calls": "the same" if torch.equal(first, second) else "different",
            "the same seed": "the same" if torch.equal(first, again) else "different",
            "the spread": "too little" if spread < 0.5 else "too much" if spread > 1.6 else "right",
        },
    )


def layers(hooks: Hooks, model: nn.Module, numbers: torch.Generator) -> dict[str, Any]:
    """Return whether gradients that depend on a parameter alone are right."""
    layer, parameter = next(model.children()), next(model.parameters())
    weight = parameter.detach()
    x = torch.randn(16, 64, generator=numbers).requires_grad_()
    other = torch.randn(48, 64, generator=numbers).requires_grad_()
    pull = torch.randn(16, 48, generator=numbers)
    with saved_tensors_hooks(hooks.pack, hooks.unpack):
        y, z = layer(x), other * parameter
    _, part = hooks.call("for a part of a parameter", parameter[1:])

    def grad(of: Tensor, at: Tensor, by: Tensor, want: Tensor, what: str) -> str:
        (got,) = call_answer(torch.autograd.grad, f"in the backward pass of {what}", of, at, by)
        close = torch.allclose(got, want, rtol=1e-4, atol=1e-3 * float(want.abs().max()))
        return "right" if close else "wrong"

    return {
        "the gradient of what a parameter is multiplied by": grad(
            z, other, torch.ones(48, 64), weight, "a product"
        ),
        "the gradient of a linear layer's input": grad(y, x, pull, pull @ weight, "a linear layer"),
        "what comes back of a part of a parameter": "right"
        if torch.equal(torch.as_tensor(part), weight[1:])
        else "changed",
    }
