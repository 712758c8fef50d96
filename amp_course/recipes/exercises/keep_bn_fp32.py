"""Exercise 2 of chapter 08: a half model whose batch norms stay in fp32,
judged by what it holds and what it computes.
"""

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    show_value,
    signature,
)

card = Card(
    chapter="recipes",
    name="keep_bn_fp32",
    number=2,
    title="A half model whose batch norms stay in fp32",
    difficulty=3,
    importance=4,
    minutes=12,
    lines=10,
    task="Write `keep_bn_fp32(model)`: every batch norm keeps its float32 parameters and "
    "statistics unchanged, every other floating-point parameter and buffer becomes fp16, and the "
    "model takes float32 batches, or ids, as a loader gives them. Convert the model in place and "
    "return it: no copy, and no wrapper around it.",
    hints=(
        "What do BatchNorm1d, 2d, 3d and SyncBatchNorm have in common? And what does a module "
        "hold that is not a parameter?",
        "All are `nn.modules.batchnorm._BatchNorm`. `module.parameters(recurse=False)` and "
        "`named_buffers(recurse=False)` are what a module holds itself, and the model is a module "
        "too. Leave out the batch norms, and whole numbers.",
        "`parameter.data = parameter.data.half()`, and `setattr(module, name, buffer.half())`. "
        "Then `model.register_forward_pre_hook(lambda model, args: tuple(… for a in args))`, "
        "which halves floating tensors only.",
    ),
    why="A variance is a mean of squares: in fp16 it overflows at values of a few hundred, and an "
    "inf in it stays there.",
    alternative="`model.half()`, then `bn.float()`, and load each batch norm's saved "
    "`state_dict`, or it stays rounded.",
)


def right(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.half()
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.half())
    model.register_forward_pre_hook(_to_half)
    return model


def _to_half(model: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(arg.half() if arg.is_floating_point() else arg for arg in args)


class ChannelNorm(nn.BatchNorm2d):
    """A batch norm whose class has another name, as people write them."""


class Net(nn.Module):
    """Vectors, or ids → all kinds of norms, with a parameter and three buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(9))
        self.register_buffer("shift", torch.zeros(9))
        self.register_buffer("unsaved_mask", torch.ones(4, 1), persistent=False)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.table, self.first = nn.Embedding(10, 9).requires_grad_(False), nn.LayerNorm(9)
        self.bn1d, tracking = (
            nn.BatchNorm1d(4),
            nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
        )
        images = {
            "to_2d": nn.Unflatten(2, (3, 3)),
            "bn2d": nn.BatchNorm2d(4, eps=0.5),
            "bn2d_conv": nn.Conv2d(4, 4, 1),
        }
        norms = {"channels": ChannelNorm(4), "group": nn.GroupNorm(2, 4), "instance": tracking}
        volumes = {
            "to_3d": nn.Unflatten(1, (4, 1)),
            "bn3d": nn.BatchNorm3d(4),
            "back": nn.Flatten(1, 2),
        }
        volumes["inner"] = nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(4), nn.Linear(9, 9))
        self.block = nn.Sequential(
            OrderedDict(images | norms | volumes | {"sync": nn.SyncBatchNorm(4, affine=False)})
        )
        self.block.weight64 = nn.Parameter(torch.ones(2).double())
        self.block.register_buffer("buffer64", torch.ones(2).double())

    def forward(self, x: Tensor) -> Tensor:
        """x: vectors (batch, 4, 9), or ids (batch, 4)."""
        vectors = self.first(x if x.is_floating_point() else self.table(x))
        return self.block(
            self.bn1d(
                (vectors * self.gain + self.get_buffer("shift")) * self.get_buffer("unsaved_mask")
            )
        )


HOOK, RUN, MODE, SAME = (
    "model.register_forward_pre_hook(_to_half)",
    "what the model makes of a batch",
    "the mode",
    "which model",
)
NORM, REST, LOST = "the batch norms", "the rest of the model", "what the model has lost"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """See what a model holds after the conversion, and what it makes of vectors and of ids.

    It is in training mode. Then convert another.
    """
    generator, model = torch.Generator().manual_seed(draw.getrandbits(31)), Net()
    for name, (one, module) in _held(
        model
    ).items():  # as after a training: no fp16 numbers, and variances beyond fp16
        if one.is_floating_point():
            eighths = torch.randint(-8, 8, one.shape, generator=generator) + 0.5
            numbers = eighths / 8 + eighths.sign() * (1 + 2.0**-9 + 2.0**-11)
            one.data.copy_(
                numbers.abs() * 7e4
                if "running_var" in name and isinstance(module, _BatchNorm)
                else numbers
            )
    reference, got = copy.deepcopy(model), call_answer(answer, "", model)
    if not isinstance(got, nn.Module):
        raise Wrong(
            f"your function returned {'None' if got is None else f'a {type(got).__name__}'}: "
            f"return the model"
        )
    held, now = _held(reference), _held(got)
    outputs: dict[str, Any] = {
        LOST: next((name for name in held if name not in now), "nothing"),
        NORM: {},
        REST: {},
    }
    faults = dict[str, list[str]]({NORM: [], REST: []})
    for name, (before, module) in held.items():
        if name in now:
            group = NORM if isinstance(module, _BatchNorm) else REST
            wanted = before.half() if group == REST and before.is_floating_point() else before
            outputs[group][name], right_state = _state(now[name][0], before), _state(wanted, before)
            faults[group] += _fault(
                f"`{name}` ({type(module).__name__})", outputs[group][name], right_state
            )
    norms = [
        (one.eps, one.momentum, one.track_running_stats)
        for one in got.modules()
        if isinstance(one, _BatchNorm)
    ]
    modes = {MODE: all(one.training for one in got.modules()), SAME: got is model}
    yield Case(
        "",
        {**outputs, "(eps, momentum, track_running_stats) of a batch norm": norms, **modes},
        {"seen": next((fault for group in faults.values() for fault in group), "")},
    )
    ids = torch.randint(0, 10, (12, 4), generator=generator)
    vectors = torch.randn(12, 4, 9, generator=generator)
    for what, batch in {
        "a float32 batch": vectors,
        "int64 ids": ids,
        "int32 ids": ids.int(),
    }.items():
        exact = reference(batch)
        try:
            near = (got(batch) - exact).abs().max() <= 0.05 * exact.abs().max()
            result = (
                "gives the output that it gives in float32"
                if near
                else "gives another output than in float32"
            )
        except Exception as error:
            result = f"raises {signature(error)}"
        yield Case("", {RUN: result}, {"batch": what})
    other = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    got = call_answer(answer, "for a second model", other)
    dtypes = (
        ", ".join(show_value(one.dtype) for one in other.parameters())
        if got is other
        else "those of another model"
    )
    yield Case(
        "for a second model, a batch norm and a linear layer",
        {"the dtypes of its parameters": dtypes},
    )


def _state(now: Tensor, before: Tensor) -> tuple[str, str, bool]:
    """Return the dtype, what has become of the numbers, and `requires_grad`."""
    alike = [
        one.double().equal(now.detach().double())
        for one in (before, before.half(), before.to(now.dtype))
    ]
    return (
        show_value(now.dtype),
        "unchanged" if alike[0] else "rounded" if any(alike) else "changed",
        now.requires_grad,
    )


def _fault(one: str, got: tuple[str, str, bool], want: tuple[str, str, bool]) -> list[str]:
    """Say what is wrong with one parameter or buffer, in a list that is empty if nothing is."""
    if got[0] != want[0]:
        return [f"{one} is {got[0]}, and should be {want[0]}"]
    if got[1] != want[1]:
        return [f"{one} is {got[0]}, but {got[1]}; it should be {want[1]}"]
    return [] if got == want else [f"`requires_grad` of {one} was {want[2]}, and is {got[2]} now"]


def _held(model: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    """Return all that a model holds: its name → the tensor, and the module that it belongs to."""
    return {
        f"{place}.{name}".lstrip("."): (one, module)
        for place, module in model.named_modules()
        for name, one in (
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        )
    }


NORMS, BUFFERS = "if isinstance(module, _BatchNorm):", "if buffer.is_floating_point():"
SAID = {
    LOST: "the model that you return has no `{got}`. A wrapper changes the names in a "
    "`state_dict`: return the model itself",
    NORM: "{seen}",
    REST: "{seen}",
    RUN: "given {batch}, the model {got}",
    MODE: "a module is in eval mode: keep all in training",
    SAME: "you return another model than the one that you were given",
}
KINDS = (
    "`isinstance(module, nn.modules.batchnorm._BatchNorm)` finds BatchNorm1d, 2d, 3d, "
    "SyncBatchNorm and subclasses"
)

mistakes = [
    Mistake(
        "everything in half",
        "the batch norms are fp16: `.half()` on a module takes all of its children along, and so "
        "does casting what `parameters()` gives. Leave them out. If you reload their values "
        "afterwards, call `bn.float()` first",
        edits={NORMS: "if False:"},
        violates="every batch norm keeps its float32 parameters and statistics",
    ),
    Mistake(
        "through fp16 and back",
        "the batch norms went through fp16 and back, and are rounded. Leave them out, or save and "
        "reload. {seen}",
        edits={
            HOOK: HOOK
            + "\n[m.half().float() for m in model.modules() if isinstance(m, _BatchNorm)]"
        },
        violates="unchanged",
    ),
    Mistake(
        "BatchNorm2d only",
        f"only BatchNorm2d stayed in float32. {KINDS}. {{seen}}",
        edits={NORMS: "if isinstance(module, nn.BatchNorm2d):"},
        violates="every batch norm",
    ),
    Mistake(
        "no subclasses",
        f"a subclass of BatchNorm2d is fp16: its `type(m)` is not BatchNorm2d, its name can be "
        f"anything. {KINDS}",
        edits={NORMS: 'if "BatchNorm" in type(module).__name__:'},
    ),
    Mistake(
        "every norm",
        "norms of all kinds stayed in float32. Only batch norms should. {seen}",
        edits={NORMS: 'if "Norm" in type(module).__name__:'},
        violates="every other",
    ),
    Mistake(
        "buffers forgotten",
        "the buffers are still float32: they are not in `parameters()`, and `b = b.half()` "
        "changes no module. Use `setattr(module, name, buffer.half())`. {seen}",
        edits={BUFFERS: "if False:"},
        violates="parameter and buffer",
    ),
    Mistake(
        "whole numbers in half",
        "a buffer of whole numbers became fp16, and counters must stay integers. Ask "
        "`buffer.is_floating_point()`",
        edits={BUFFERS: "if True:"},
        violates="floating-point",
    ),
    Mistake(
        "leaf modules only",
        "what modules with children hold themselves was left out: go through all, with "
        "`recurse=False`. {seen}",
        edits={NORMS: "if isinstance(module, _BatchNorm) or list(module.children()):"},
    ),
    Mistake(
        "a copy",
        "the model that you return is a copy. What holds the model that you were given, such as "
        "an optimizer, still has the old one: convert that in place, and return it",
        answer=lambda model: right(copy.deepcopy(model)),
        violates="no copy",
    ),
    Mistake(
        "batch not cast",
        "a batch still arrives in float32. Return it cast from a hook: "
        "`model.register_forward_pre_hook(hook)`",
        edits={HOOK: "pass"},
        violates="takes float32 batches",
    ),
    Mistake(
        "ids cast",
        "ids became fp16 too, and an embedding needs whole numbers. Cast only what is "
        "`x.is_floating_point()`",
        edits={
            HOOK: "model.register_forward_pre_hook(lambda model, args: tuple(arg.half() for arg in "
            "args))"
        },
        violates="or ids",
    ),
]

keep_bn_fp32 = Exercise(card, right, cases, mistakes, messages=SAID)
