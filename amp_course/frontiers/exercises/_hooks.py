"""For exercise 5 of chapter 12: what the two functions of an answer do, case by case."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from amp_course.checking import Case, Wrong, call_answer, read_pair, read_tensor
from amp_course.frontiers.exercises._shared import bytes_of, held_tensors

GROUP, COPIES = 64, 2000
FULL = "for 512 float32 numbers, whose groups have ranges from 1e-9 to 300"
RANGES = (1.0, 1e-9, 300.0, 0.01, 2.0, 1e-4, 40.0, 1.0)
STARTS = (0.0, 0.0, 0.0, -5.0, 7.0, 1e-4, -3.0, 1.0)
ERROR = "the largest error, in steps of its group,"


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


def mean(hooks: Hooks, numbers: torch.Generator) -> Case:
    """Pack many copies of one group with levels at -2, 0, 2 and 4; compare what comes back."""
    case = f"for {COPIES:,} copies of one group"
    counts = {-1: 21, 0: 21, 1: 20}  # in steps of 2
    parts = [torch.linspace(0.05, 0.94, many) + level for level, many in counts.items()]
    row = 2 * torch.cat([torch.tensor([-1.0, 2.0]), *parts])
    row = row[torch.randperm(GROUP, generator=numbers)]
    got = hooks.round_trip(case, row.repeat(COPIES, 1))[0].double()
    share = row.double() / 2 % 1
    off = (got.mean(0) - row) / (12 * (share * (1 - share) / COPIES).sqrt() + 1e-5)
    worst = int(off.abs().argmax())
    levels = sorted({round(one, 4) + 0.0 for one in got.unique().tolist()})
    moved = ((got - row) / 2)[:, (row > 0) & (row < 2)]  # in steps, from the middle interval
    same = bool((got == got[0]).all())
    return Case(
        case,
        {
            "the levels that come back": levels if len(levels) <= 4 else f"{len(levels):,} numbers",
            "the mean": "right" if off.abs().max() <= 1 else "wrong",
        },
        {"seen": f"{row[worst]:.3f} comes back as {got.mean(0)[worst]:.3f} on average"},
        {
            "moves": [
                round(float(one.mean()), 1) + 0.0 for one in (moved, (moved.abs() > 1).double())
            ],
            "copies": same,
            "one copy": [round(one, 4) + 0.0 for one in got[0].tolist()] if same else [],
        },
    )


def groups(hooks: Hooks, numbers: torch.Generator) -> Case:
    """Compare what comes back of full groups of many ranges, and what is kept of them."""
    rows = torch.rand(len(RANGES), GROUP, generator=numbers) * torch.tensor(RANGES)[:, None]
    rows += torch.tensor(STARTS)[:, None]
    back, kept, outputs = hooks.round_trip(FULL, rows.view(2, 4, GROUP))
    bits = 8 * bytes_of(held_tensors(kept)) / rows.numel()
    outputs["the kept bits a number"] = "at most 3" if bits <= 3 else bits
    slack = rows.abs().amax(1) * 2.0**-21  # the rounding of float32, in a group far from 0
    far = (back.reshape(rows.shape) - rows).abs().amax(1) - slack
    errors = (far / (rows.amax(1) - rows.amin(1)) * 3).nan_to_num(torch.inf)
    outputs[ERROR] = "at most 1" if errors.max() <= 1.001 else "more than 1"
    within = {"groups": (errors <= 1.001).tolist()}
    return Case(FULL, outputs, {"far": f"{errors.max():.3g}"}, within)


def tensors(hooks: Hooks, numbers: torch.Generator) -> Iterator[Case]:
    """Compare what comes back of tensors of other dtypes, shapes and strides."""

    def values(*shape: int) -> Tensor:
        return torch.randn(shape, generator=numbers)

    given = {
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
    for case, tensor in given.items():
        back, _, outputs = hooks.round_trip(case, tensor)
        if tensor.is_floating_point() and tensor.unique().numel() > 1:
            ends = torch.stack([*tensor.aminmax(), tensor.new_zeros(())]).double()  # or the padding
            error = float((back.double() - tensor.double()).abs().max() / (ends.max() - ends.min()))
            outputs["the largest error, as a share of the range,"] = (
                "at most 1/3" if error < 0.34 else round(error, 3)
            )
        else:
            outputs["what comes back"] = back
        yield Case(case, outputs)


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
