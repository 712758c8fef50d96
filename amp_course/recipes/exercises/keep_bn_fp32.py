"""Exercise 2 of chapter 08: a half model whose batch norms stay in fp32."""

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer, signature
from amp_course.kit.dtypes import dtype_name

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
        "What do BatchNorm1d, 2d, 3d and SyncBatchNorm have in common? And what does a module hold "
        "that is not a parameter?",
        "All are `nn.modules.batchnorm._BatchNorm`. `module.parameters(recurse=False)` and "
        "`named_buffers(recurse=False)` are what a module holds itself, and the model is a module "
        "too. Leave out batch norms and whole numbers.",
        "`parameter.data = parameter.data.half()`, and `setattr(module, name, buffer.half())`. "
        "Then `model.register_forward_pre_hook(lambda model, args: tuple(… for a in args))`, which "
        "halves floating-point tensors only.",
    ),
    why="A variance is a mean of squares. In fp16 it overflows at values of a few hundred, and an "
    "inf in it stays there.",
    alternative="`model.half()`, then `bn.float()` and loading the saved `state_dict` of each "
    "batch norm, which would stay rounded otherwise.",
)


def right(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        for parameter in module.parameters(recurse=False):
            parameter.data = parameter.data.half()
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point():
                setattr(module, name, buffer.half())

    def to_half(model: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(arg.half() if arg.is_floating_point() else arg for arg in args)

    model.register_forward_pre_hook(to_half)
    return model


class ChannelNorm(nn.BatchNorm2d):
    """A batch norm whose class has another name, as people write them."""


class Net(nn.Module):
    """All kinds of norms, with a parameter and three buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(9))
        self.register_buffer("shift", torch.zeros(9))
        self.register_buffer("unsaved_mask", torch.ones(4, 1), persistent=False)
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.table, self.first = nn.Embedding(10, 9).requires_grad_(False), nn.LayerNorm(9)
        self.bn1d = nn.BatchNorm1d(4)
        self.block = nn.Sequential(
            OrderedDict(
                to_2d=nn.Unflatten(2, (3, 3)),
                bn2d=nn.BatchNorm2d(4, eps=0.5),
                bn2d_conv=nn.Conv2d(4, 4, 1),
                channels=ChannelNorm(4),
                group=nn.GroupNorm(2, 4),
                instance=nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
                to_3d=nn.Unflatten(1, (4, 1)),
                bn3d=nn.BatchNorm3d(4),
                back=nn.Flatten(1, 2),
                inner=nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(4), nn.Linear(9, 9)),
                sync=nn.SyncBatchNorm(4, affine=False),
            )
        )
        self.block.weight64 = nn.Parameter(torch.ones(2).double())
        self.block.register_buffer("buffer64", torch.ones(2).double())

    def forward(self, x: Tensor) -> Tensor:
        """x: vectors (batch, 4, 9), or ids (batch, 4)."""
        x = self.first(x if x.is_floating_point() else self.table(x))
        x = (x * self.gain + self.get_buffer("shift")) * self.get_buffer("unsaved_mask")
        return self.block(self.bn1d(x))


LOST, SAME = "what the model has lost", "which model you return"
MODE, RUN = "the mode", "what the model makes of a batch"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Convert a model in training mode, see what it holds, and run it; convert another model."""
    generator, model = torch.Generator().manual_seed(draw.getrandbits(31)), Net()
    for name, (tensor, module) in _held(model).items():
        if tensor.is_floating_point():  # no fp16 numbers, and variances beyond fp16
            eighths = torch.randint(-8, 8, tensor.shape, generator=generator) + 0.5
            numbers = eighths / 8 + eighths.sign() * (1 + 2.0**-9 + 2.0**-11)
            large = "running_var" in name and isinstance(module, _BatchNorm)
            tensor.data.copy_(numbers.abs() * 7e4 if large else numbers)
    reference, got = copy.deepcopy(model), call_answer(answer, "", model)
    if not isinstance(got, nn.Module):
        kind = "None" if got is None else f"a {type(got).__name__}"
        raise Wrong(f"your function returned {kind}. Return the model")
    held, now = _held(reference), _held(got)
    norms, rest = dict[str, str](), dict[str, str]()
    for name, (before, module) in held.items():
        if name in now:
            group = norms if isinstance(module, _BatchNorm) else rest
            group[f"{name} ({type(module).__name__})"] = _state(now[name][0], before)
    settings = [
        (one.eps, one.momentum, one.track_running_stats)
        for one in got.modules()
        if isinstance(one, _BatchNorm)
    ]
    yield Case(
        "",
        {
            LOST: next((name for name in held if name not in now), "nothing"),
            "the batch norms": norms,
            "the rest of the model": rest,
            "(eps, momentum, track_running_stats) of a batch norm": settings,
            MODE: all(one.training for one in got.modules()),
            SAME: got is model,
        },
    )
    ids = torch.randint(0, 10, (12, 4), generator=generator)
    vectors = torch.randn(12, 4, 9, generator=generator)
    batches = {"a float32 batch": vectors, "int64 ids": ids, "int32 ids": ids.int()}
    for what, batch in batches.items():
        exact = reference(batch)
        try:
            near = (got(batch) - exact).abs().max() <= 0.05 * exact.abs().max()
            result = f"gives {'the same' if near else 'another'} output as in float32"
        except Exception as error:
            result = f"raises {signature(error)}"
        yield Case("", {RUN: result}, {"batch": what})
    other = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    got = call_answer(answer, "for a second model", other)
    dtypes = ", ".join(dtype_name(one.dtype) for one in other.parameters())
    yield Case(
        "for a second model, a batch norm and a linear layer",
        {"the dtypes of its parameters": dtypes if got is other else "those of another model"},
    )


def _held(model: nn.Module) -> dict[str, tuple[Tensor, nn.Module]]:
    """Return all that a model holds: its name → the tensor and its module."""
    return {
        f"{place}.{name}".lstrip("."): (tensor, module)
        for place, module in model.named_modules()
        for kind in (module.named_parameters, module.named_buffers)
        for name, tensor in kind(recurse=False)
    }


def _state(now: Tensor, before: Tensor) -> str:
    """Describe a tensor, and how its numbers differ from those before the conversion."""
    numbers = now.detach().double()
    possible = (before, before.half(), before.to(now.dtype))
    same, *rounded = (one.double().equal(numbers) for one in possible)
    change = "unchanged" if same else "rounded" if any(rounded) else "changed"
    return f"`{dtype_name(now.dtype)}, {change}, requires_grad={now.requires_grad}`"


NORMS = "if isinstance(module, nn.modules.batchnorm._BatchNorm):"
BUFFERS = "if buffer.is_floating_point():"
HOOK = "model.register_forward_pre_hook(to_half)"
KINDS = (
    "`isinstance(module, nn.modules.batchnorm._BatchNorm)` finds BatchNorm1d, 2d, 3d, "
    "SyncBatchNorm and subclasses"
)

mistakes = [
    Mistake(
        "everything in half",
        "the batch norms are fp16. `.half()` on a module casts all of its children, too, as does "
        "casting what `parameters()` gives, so leave the batch norms out",
        edits={NORMS: "if False:"},
        violates="every batch norm keeps its float32 parameters and statistics",
    ),
    Mistake(
        "children only",
        "the batch norms inside other modules are fp16. `model.children()` gives only the "
        "outermost modules, whose `.half()` casts all that they hold: loop over `model.modules()`, "
        "and cast what each holds itself",
        edits={
            NORMS: f"if module in model.children() and not {NORMS[3:-1]}:\n    module.half()\n"
            "if True:"
        },
    ),
    Mistake(
        "through fp16 and back",
        "the batch norms were cast to fp16 and back, which rounds them. Leave them out, or save "
        "and reload them",
        edits={
            HOOK: f"{HOOK}\n"
            "[m.half().float() for m in model.modules() if isinstance(m, _BatchNorm)]"
        },
        violates="unchanged",
    ),
    Mistake(
        "BatchNorm2d only",
        f"only BatchNorm2d stayed in float32. {KINDS}",
        edits={NORMS: "if isinstance(module, nn.BatchNorm2d):"},
        violates="every batch norm",
    ),
    *(
        Mistake(
            f"{kinds} only",
            f"{missing} in fp16. {KINDS}",
            edits={NORMS: f"if isinstance(module, {classes}):"},
        )
        for kinds, missing, classes in (
            ("1d and 2d", "BatchNorm3d and SyncBatchNorm are", "(nn.BatchNorm1d, nn.BatchNorm2d)"),
            (
                "1d, 2d and 3d",
                "SyncBatchNorm is",
                "(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)",
            ),
        )
    ),
    Mistake(
        "no subclasses",
        "a subclass of BatchNorm2d is fp16. Its `type(m)` is not BatchNorm2d, and its name can be "
        f"anything. {KINDS}",
        edits={NORMS: 'if "BatchNorm" in type(module).__name__:'},
    ),
    *(
        Mistake(
            name,
            "a norm of another kind stayed in float32, as InstanceNorm does if you test for "
            "`_NormBase`. Only batch norms should",
            edits={NORMS: f"if {test}:"},
            violates="every other",
        )
        for name, test in (
            ("every norm", '"Norm" in type(module).__name__'),
            ("instance norms too", "isinstance(module, nn.modules.batchnorm._NormBase)"),
            ("layer norms too", "isinstance(module, (_BatchNorm, nn.LayerNorm))"),
            ("two more", "isinstance(module, (_BatchNorm, nn.LayerNorm, nn.GroupNorm))"),
        )
    ),
    Mistake(
        "buffers forgotten",
        "the buffers are still float32. They are not in `parameters()`, and `b = b.half()` changes "
        "no module, so use `setattr(module, name, buffer.half())`",
        edits={BUFFERS: "if False:"},
        violates="parameter and buffer",
    ),
    Mistake(
        "whole numbers in half",
        "a buffer of whole numbers became fp16. Cast only where `buffer.is_floating_point()`",
        edits={BUFFERS: "if True:"},
        violates="floating-point",
    ),
    Mistake(
        "leaf modules only",
        "what modules with children hold themselves was left out. Go through all modules, with "
        "`recurse=False`",
        edits={NORMS: "if isinstance(module, _BatchNorm) or list(module.children()):"},
    ),
    Mistake(
        "outermost modules only",
        "only what the outermost modules hold themselves became fp16. Loop over "
        "`model.modules()`, which gives the model and all that is nested in it",
        edits={"for module in model.modules():": "for module in model.children():"},
    ),
    Mistake(
        "a copy",
        "you return a copy. An optimizer still has the parameters of the model that you were "
        "given: convert that",
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
        "ids became fp16 too, and an embedding needs whole numbers. Cast only where "
        "`x.is_floating_point()`",
        edits={HOOK: HOOK.replace("to_half", "lambda _, args: tuple(x.half() for x in args)")},
        violates="or ids",
    ),
]

keep_bn_fp32 = Exercise(
    card,
    right,
    cases,
    mistakes,
    messages={
        LOST: "the model that you return has no `{got}`. A wrapper changes the names in a "
        "`state_dict`, so return the model itself",
        RUN: "given {batch}, the model {got}",
        MODE: "a module is in eval mode. Keep all in training",
        SAME: "you return another model than the one that you were given",
    },
)
