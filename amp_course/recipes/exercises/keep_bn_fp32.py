"""Exercise 2 of chapter 08: a half model whose batch norms stay in fp32, judged by what it holds and what it computes."""

import copy
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from amp_course.checking import Exercise, Mistake, Turn, Wrong, call_answer, show_value, signature

keep_bn_fp32 = Exercise(
    chapter="recipes", name="keep_bn_fp32", number=2, title="A half model whose batch norms stay in fp32", difficulty=3,
    importance=4, minutes=12, lines=10,
    task="Write `keep_bn_fp32(model)`: every batch norm keeps its float32 parameters and statistics unchanged, every other "
    "floating-point parameter and buffer becomes fp16, and the model takes float32 batches, or ids, as a loader gives them. "
    "Return the model.",
    hints=(
        "What do BatchNorm1d, 2d, 3d and SyncBatchNorm have in common? And what does a module hold that is not a parameter?",
        "All are `nn.modules.batchnorm._BatchNorm`. `module.parameters(recurse=False)` and `named_buffers(recurse=False)` are "
        "what a module holds itself, and the model is a module too. Leave out the batch norms, and whole numbers.",
        "`parameter.data = parameter.data.half()`, and `setattr(module, name, buffer.half())`. Then "
        "`model.register_forward_pre_hook(lambda model, args: tuple(… for a in args))`, which halves floating tensors only.",
    ),
    why="A variance is a mean of squares: in fp16 it overflows once values reach a few hundred, and an inf in the running "
    "statistics stays there.",
    alternative="`model.half()`, then `bn.float()`, and load the saved `state_dict` of each batch norm back. Without the "
    "loading, a trained model's statistics stay rounded.",
)  # fmt: skip


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
        self.bn1d, tracking = nn.BatchNorm1d(4), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)
        images = {"to_2d": nn.Unflatten(2, (3, 3)), "bn2d": nn.BatchNorm2d(4, eps=0.5), "conv": nn.Conv2d(4, 4, 1)}
        norms = {"channels": ChannelNorm(4), "group": nn.GroupNorm(2, 4), "instance": tracking}
        volumes = {"to_3d": nn.Unflatten(1, (4, 1)), "bn3d": nn.BatchNorm3d(4), "back": nn.Flatten(1, 2)}
        volumes["inner"] = nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(4), nn.Linear(9, 9))
        self.block = nn.Sequential(OrderedDict(images | norms | volumes | {"sync": nn.SyncBatchNorm(4, affine=False)}))
        self.block.weight64 = nn.Parameter(torch.ones(2).double())
        self.block.register_buffer("buffer64", torch.ones(2).double())

    def forward(self, x: Tensor) -> Tensor:
        """x: vectors (batch, 4, 9), or ids (batch, 4)."""
        vectors = self.first(x if x.is_floating_point() else self.table(x))
        return self.block(self.bn1d((vectors * self.gain + self.get_buffer("shift")) * self.get_buffer("unsaved_mask")))


def play(answer: Callable[..., Any], draw: random.Random) -> Iterator[Turn]:
    """See what a model holds after the conversion, then what it makes of vectors and of ids, in training mode."""
    generator, model = torch.Generator().manual_seed(draw.getrandbits(31)), Net()
    for name, (one, of_norm) in _held(model).items():  # as after a training: no fp16 numbers, and variances beyond fp16
        if one.is_floating_point():
            eighths = torch.randint(-8, 8, one.shape, generator=generator) + 0.5
            numbers = eighths / 8 + eighths.sign() * (1 + 2.0**-9 + 2.0**-11)
            one.data.copy_(numbers.abs() * 7e4 if "running_var" in name and of_norm else numbers)
    reference, got = copy.deepcopy(model), call_answer(answer, "", model)
    if not isinstance(got, nn.Module):
        raise Wrong(f"your function returned {'None' if got is None else f'a {type(got).__name__}'}: return the model")
    facets: dict[str, Any] = {"the number of parameters and buffers": min(len(_held(got)), len(_held(reference)))}
    facets |= {"the batch norms": {}, "the rest of the model": {}}
    for (name, (before, of_norm)), (now, _) in zip(_held(reference).items(), _held(got).values(), strict=False):
        facets["the batch norms" if of_norm else "the rest of the model"][name] = _became(now, before)
    norms = [(one.eps, one.momentum, one.track_running_stats) for one in got.modules() if isinstance(one, _BatchNorm)]
    modes = {MODE: all(one.training for one in got.modules())}
    yield Turn("", {**facets, "(eps, momentum, track_running_stats) of a batch norm": norms, **modes})
    ids = torch.randint(0, 10, (12, 4), generator=generator)
    for what, batch in {"a float32 batch": torch.randn(12, 4, 9, generator=generator), "ids": ids}.items():
        exact = reference(batch)
        try:
            near = (got(batch) - exact).abs().max() <= 0.05 * exact.abs().max()
            result = "gives the output that it gives in float32" if near else "gives another output than in float32"
        except Exception as error:
            result = f"raises {signature(error)}"
        yield Turn("", {RUN: result}, {"batch": what})


def _became(now: Tensor, before: Tensor) -> str:
    alike = [one.double().equal(now.detach().double()) for one in (before, before.half(), before.to(now.dtype))]
    which = "unchanged" if alike[0] else "rounded" if any(alike) else "other numbers"
    frozen = ", frozen" if isinstance(before, nn.Parameter) and not now.requires_grad else ""
    return f"{show_value(now.dtype)} ({which}{frozen})" if before.is_floating_point() else show_value(now.dtype)


def _held(model: nn.Module) -> dict[str, tuple[Tensor, bool]]:
    """Return all that a model holds: "gain` of the `Net" → the tensor, and whether it is a batch norm's."""
    return {
        f"{place}.{name}` of the `{type(module).__name__}".lstrip("."): (one, isinstance(module, _BatchNorm))
        for place, module in model.named_modules()
        for name, one in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }


NORMS, BUFFERS = "if isinstance(module, _BatchNorm):", "if buffer.is_floating_point():"
HOOK, RUN, MODE = "model.register_forward_pre_hook(_to_half)", "what the model makes of a batch", "the mode"
SAID = {RUN: "given {batch}, the model {got}", MODE: "a module comes back in eval mode: leave all in training mode"}
KINDS = "`isinstance(module, nn.modules.batchnorm._BatchNorm)` finds BatchNorm1d, 2d, 3d, SyncBatchNorm and subclasses"

keep_bn_fp32.judge_by(
    right=right, play=play, said=SAID, mistakes=[
        Mistake("everything in half", breaks="every batch norm keeps its float32 parameters and statistics",
                edits={NORMS: "if False:"},
                told="the batch norms are fp16 like the rest. Leave them out, or call `bn.float()` before you load their values"),
        Mistake("through fp16 and back", breaks="unchanged",
                edits={HOOK: HOOK + "\n[m.half().float() for m in model.modules() if isinstance(m, _BatchNorm)]"},
                told="the batch norms went through fp16 and back, which rounds them. Leave them out, or save and reload them"),
        Mistake("BatchNorm2d only", breaks="every batch norm", edits={NORMS: "if isinstance(module, nn.BatchNorm2d):"},
                told=f"only BatchNorm2d stayed in float32. {KINDS}"),
        Mistake("no subclasses", edits={NORMS: 'if "BatchNorm" in type(module).__name__:'},
                told=f"a subclass of BatchNorm2d became fp16: its type is another, and it may have any name. {KINDS}"),
        Mistake("every norm", breaks="every other", edits={NORMS: 'if "Norm" in type(module).__name__:'},
                told="norms of all kinds stayed in float32. Only batch norms should"),
        Mistake("buffers forgotten", breaks="parameter and buffer", edits={BUFFERS: "if False:"},
                told="the buffers stayed in float32: they are not among the `parameters()`. Convert `named_buffers()` too"),
        Mistake("whole numbers in half", breaks="floating-point", edits={BUFFERS: "if True:"},
                told="a buffer of whole numbers became fp16, and counters must stay integers. Ask `buffer.is_floating_point()`"),
        Mistake("leaf modules only", edits={NORMS: "if isinstance(module, _BatchNorm) or list(module.children()):"},
                told="what modules with children hold themselves was left out. Go through all modules, with `recurse=False`"),
        Mistake("batch not cast", breaks="takes float32 batches", edits={HOOK: "pass"},
                told="a batch still arrives in float32. Return it cast from a hook: `model.register_forward_pre_hook(hook)`"),
        Mistake("ids cast", breaks="or ids",
                edits={HOOK: "model.register_forward_pre_hook(lambda model, args: tuple(arg.half() for arg in args))"},
                told="ids became fp16 too, and an embedding needs whole numbers. Cast only what is `x.is_floating_point()`"),
    ],
)  # fmt: skip
