"""Exercise 5 of chapter 12: activations in 2 bits for the backward pass, by what comes back,
and by what is kept meanwhile.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong
from amp_course.frontiers.exercises._hooks import (
    GROUP,
    Hooks,
    independence,
    layers,
    tensors_of_many_kinds,
)
from amp_course.frontiers.packing import pack, unpack

card = Card(
    chapter="frontiers",
    name="compressed_hooks",
    number=5,
    title="Activations in 2 bits",
    difficulty=4,
    importance=3,
    minutes=25,
    lines=20,
    task="Write `compressed_hooks(model, generator)`, which returns the two functions that "
    "`saved_tensors_hooks` takes. They keep a floating-point tensor in 2 bits a number. Take its "
    "numbers in groups of 64 neighbours; the last group may be filled up with zeros. Each group "
    "also keeps its smallest value and a step, a third of its range, in float32, so that full "
    "groups take at most 3 bits a number. The levels are the smallest value plus 0, 1, 2 or 3 "
    "steps. A number goes to one of the two levels around it, at random, with draws from the "
    "generator, independently of the others, so that the mean is right. Shape and dtype come "
    "back, and groups of equal numbers come back exactly. Leave alone what is not floating-point, "
    "the model's parameters, and views of them. Tensors are finite and may have any shape and "
    "strides; they stay unchanged, and nothing that is kept requires a gradient.",
    hints=(
        "Which tensors must come back exactly? A linear layer saves its weight transposed: what "
        "do a tensor and a view of it have in common?",
        "`t.untyped_storage().data_ptr()` is the same for all views. For all else: "
        "`t.detach().float().flatten()`, pad, `view(-1, 64)`; then `amin(1, keepdim=True)`, and a "
        "step. What if the step is 0? `pack` and `unpack` are there for you.",
        "`codes = ((rows - least) / width + torch.rand(rows.shape, "
        "generator=generator)).floor().clamp(0, 3)`, where width is 1 if the step is 0. Keep "
        "`pack(codes.to(torch.uint8))`, least, step, shape and dtype; back, `least + codes * "
        "step`.",
    ),
    why="Activations take most of the memory of a training. Gradients of weights are linear in "
    "what a linear layer saves, so noise of mean 0 leaves them right on average.",
    alternative="`amp_course.frontiers.activations.CompressedActivations`, which follows "
    "`grad_fn` to see whether a tensor was made from a parameter alone: so it also knows the "
    "copies that autocast makes.",
)


def right(model: Any, generator: Any) -> Any:
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack_hook(tensor: Any) -> Any:
        if not tensor.is_floating_point():
            return tensor
        if tensor.untyped_storage().data_ptr() in weights:
            return tensor
        flat = tensor.detach().float().flatten()
        rows = pad(flat, (0, -len(flat) % 64)).view(-1, 64)
        least = rows.amin(1, keepdim=True)
        step = (rows.amax(1, keepdim=True) - least) / 3
        width = torch.where(step > 0, step, 1.0)
        noise = torch.rand(rows.shape, generator=generator)
        codes = ((rows - least) / width + noise).floor().clamp(0, 3)
        return pack(codes.to(torch.uint8)), least, step, tensor.shape, tensor.dtype

    def unpack_hook(saved: Any) -> Any:
        if isinstance(saved, Tensor):
            return saved
        packed, least, step, shape, dtype = saved
        codes = unpack(packed, 64 * len(least)).view(-1, 64)
        values = least + codes * step
        return values.flatten()[: shape.numel()].view(shape).to(dtype)

    return pack_hook, unpack_hook


COPIES = 2000
RANGES = (
    (1.0, 0.0),
    (1e-9, 0.0),
    (300.0, 0.0),
    (0.01, -5.0),
    (2.0, 7.0),
    (1e-4, 1e-4),
    (40.0, -3.0),
    (1.0, 1.0),
)
FULL = "for 512 float32 numbers, whose groups have ranges from 1e-9 to 300"
ERROR = "the largest error, in steps of its group,"


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """One tensor of groups of many sizes; the mean over 2,000 copies of a group; other dtypes and
    shapes; a linear layer.

    A right answer fails less than once in 10⁶ checks: a mean is compared within 6 standard errors.
    """
    seed = draw.getrandbits(31)
    numbers = torch.Generator().manual_seed(seed + 1)
    model = nn.Sequential(nn.Linear(64, 48, bias=False), nn.Tanh(), nn.Linear(48, 32))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=numbers))
    hooks = Hooks(answer, model, seed)

    rows = torch.stack(
        [torch.rand(GROUP, generator=numbers) * size + start for size, start in RANGES]
    )
    x = rows.view(2, 4, GROUP).clone()
    yield _mean(hooks, numbers)
    outputs = hooks.outputs(FULL, x)
    errors = _errors(rows, hooks.last.reshape(rows.shape))
    outputs[ERROR] = "at most 1" if max(errors) <= 1.001 else "more than 1"
    yield Case(
        FULL, outputs, {"far": f"{max(errors):.3g}"}, {"groups": [one <= 1.001 for one in errors]}
    )
    yield independence(hooks, seed)
    for case, tensor in tensors_of_many_kinds(numbers).items():
        outputs = hooks.outputs(case, tensor, counted=False)
        if tensor.is_floating_point() and tensor.unique().numel() > 1:
            padded = torch.cat([tensor.flatten(), tensor.new_zeros(1)])  # as a last group may be
            low, high = float(padded.min()), float(padded.max())
            far = float((hooks.last.double() - tensor.double()).abs().max()) / (high - low)
            outputs["the largest error, as a share of the range,"] = (
                "at most 1/3" if far < 0.34 else round(far, 3)
            )
        else:
            outputs["what comes back"] = hooks.last
        yield Case(case, outputs)
    yield Case("", layers(hooks, model, numbers))


def _errors(rows: Tensor, got: Tensor) -> list[float]:
    """Return the largest error of each group, in steps of that group; NaN as inf."""
    steps = (rows.amax(1) - rows.amin(1)) / 3
    slack = rows.abs().amax(1) * 2.0**-21  # the rounding of float32, in a group far from 0
    return (((got - rows).abs().amax(1) - slack) / steps).nan_to_num(torch.inf).tolist()


def _mean(hooks: Hooks, numbers: torch.Generator) -> Case:
    """Send many copies of one group, and compare the mean of what comes back."""
    case = f"for {COPIES:,} copies of one group"
    parts = [
        torch.linspace(0.05, 0.94, many) + level for level, many in ((-1, 21), (0, 21), (1, 20))
    ]  # in steps of 2
    row = 2 * torch.cat([torch.tensor([-1.0, 2.0]), *parts])
    row = row[torch.randperm(GROUP, generator=numbers)]
    got = hooks.there_and_back(case, row.repeat(COPIES, 1)).reshape(-1)[: COPIES * GROUP]
    if got.numel() != COPIES * GROUP:
        raise Wrong(f"{case}, {got.numel():,} numbers come back of {COPIES * GROUP:,}")
    got = got.view(COPIES, GROUP).double()
    share = ((row.double() + 2) / 2) % 1  # a step is 2
    error = 2 * (share * (1 - share) / COPIES).sqrt() * 6 + 1e-5
    off = (got.mean(0) - row) / error
    worst = int(off.abs().argmax())
    levels = sorted({round(one, 4) + 0.0 for one in got.unique().tolist()})
    seen = f"{row[worst]:.3f} comes back as {got.mean(0)[worst]:.3f} on average"
    moved = ((got - row) / 2)[
        :, (row > 0) & (row < 2)
    ]  # in steps, between the two levels in the middle
    shares = [round(float(one.mean()), 1) + 0.0 for one in (moved, (moved.abs() > 1).double())]
    same = bool((got == got[0]).all())
    way = [round(one, 4) + 0.0 for one in got[0].tolist()] if same else []
    return Case(
        case,
        {
            "the levels that come back": levels if len(levels) <= 4 else f"{len(levels):,} numbers",
            "the mean": "right" if float(off.abs().max()) <= 1 else "wrong",
        },
        {"seen": seen},
        {"moves": shares, "copies": same, "way": way},
    )


WEIGHTS, INTEGERS = (
    "weights = {p.untyped_storage().data_ptr() for p in model.parameters()}",
    "if not tensor.is_floating_point():",
)
WEIGHT, FLAT = (
    "if tensor.untyped_storage().data_ptr() in weights:",
    "flat = tensor.detach().float().flatten()",
)
PADDED = "pad(flat, (0, -len(flat) % 64))"
ROWS, LEAST = f"rows = {PADDED}.view(-1, 64)", "least = rows.amin(1, keepdim=True)"
STEP, WIDTH = (
    "step = (rows.amax(1, keepdim=True) - least) / 3",
    "width = torch.where(step > 0, step, 1.0)",
)
NOISE = "noise = torch.rand(rows.shape, generator=generator)"
CODES = "codes = ((rows - least) / width + noise).floor().clamp(0, 3)"
KEEP = "return pack(codes.to(torch.uint8)), least, step, tensor.shape, tensor.dtype"
SAVED = "packed, least, step, shape, dtype = saved"
UNPACK, VALUES = (
    "codes = unpack(packed, 64 * len(least)).view(-1, 64)",
    "values = least + codes * step",
)
BACK = "return values.flatten()[: shape.numel()].view(shape).to(dtype)"
SAID = {
    "what is kept": "{case}, what is kept requires a gradient, and with it autograd keeps the "
    "whole graph: work on `tensor.detach()`",
    "the tensor": "{case}, your function changes the tensor that autograd saves: work on a copy",
    "the mean": "{seen}",
    ERROR: "{case}, the largest error of a group is {far} of its steps. No number moves further "
    "than to the next level, one step",
    "two calls": "two calls give the same result: each has to draw new numbers from the generator",
    "the same seed": "with a generator of the same seed, another result comes back: draw from "
    "that generator alone",
    "the spread": "the number of elements of a group that go up varies {got} from group to group: "
    "draw for each element, independently of the others",
    "the gradient of a linear layer's input": "the gradient of a linear layer's input is off. It "
    "depends on nothing but the weight, which is saved transposed, as a view of the parameter: "
    "leave it alone, too",
    "what comes back of a part of a parameter": "a part of a parameter, `p[1:]`, does not come "
    "back as it was: leave views of parameters alone, too",
    "the gradient of what a parameter is multiplied by": "the gradient of what a parameter is "
    "multiplied by is off: leave parameters, and views of them, alone",
}

mistakes = [
    Mistake(
        "rounds to nearest",
        "numbers are rounded to nearest, always the same way: {seen}. Add noise from 0 to 1, then "
        "take the floor",
        edits={CODES: CODES.replace(" + noise).floor()", ").round()")},
        violates="at random",
    ),
    Mistake(
        "rounds down",
        "numbers are rounded down: {seen}. Add noise from 0 to 1 before you take the floor",
        edits={CODES: CODES.replace(" + noise", "")},
    ),
    Mistake(
        "noise and nearest",
        "noise from 0 to 1 and rounding to nearest add half a step: {seen}. With such noise, take "
        "the floor",
        edits={CODES: CODES.replace("floor", "round")},
        violates="so that the mean is right",
    ),
    Mistake(
        "noise of mean 0 and floor",
        "noise around 0 and the floor take half a step away: {seen}. With the floor, noise goes "
        "from 0 to 1",
        edits={CODES: CODES.replace("+ noise", "+ noise - 0.5")},
    ),
    Mistake(
        "normal noise",
        "the noise is normal, and must be uniform from 0 to 1: {seen}",
        edits={NOISE: "noise = torch.randn(rows.shape, generator=generator)"},
    ),
    Mistake(
        "tosses a coin",
        "both levels come up equally often, and the nearer one has to come up more often: {seen}",
        edits={CODES: "codes = ((rows - least) / width + (noise < 0.5)).floor().clamp(0, 3)"},
        violates="one of the two levels around it",
    ),
    Mistake(
        "one draw for each group",
        "one draw decides for a whole group: draw for each element, `torch.rand(rows.shape, …)`",
        edits={NOISE: "noise = torch.rand((len(rows), 1), generator=generator)"},
        violates="independently of the others",
    ),
    Mistake(
        "one draw for all groups",
        "all groups share their 64 draws: draw for each element, `torch.rand(rows.shape, …)`",
        edits={NOISE: "noise = torch.rand(64, generator=generator)"},
    ),
    Mistake(
        "draws from elsewhere",
        "the generator's seed does not decide the result: write `torch.rand(rows.shape, "
        "generator=generator)`",
        edits={NOISE: "noise = torch.rand(rows.shape)"},
        violates="with draws from the generator",
    ),
    Mistake(
        "the same draws on every call",
        "every call draws the same numbers: draw from the given generator itself, and do not seed "
        "it",
        edits={NOISE: "noise = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0))"},
    ),
    Mistake(
        "one scale for all",
        "all groups share one smallest value and one step, which are too coarse for groups of "
        "small numbers: take them along each row",
        edits={
            LEAST: "least = rows.amin().repeat(len(rows), 1)",
            STEP: "step = (rows.amax().repeat(len(rows), 1) - least) / 3",
        },
        violates="in groups of 64 neighbours",
    ),
    Mistake(
        "one group for each row",
        "groups are larger than 64 numbers: each has to hold 64, whatever the shape",
        edits={
            ROWS: "rows = flat.view(len(tensor) if tensor.dim() else 1, -1)",
            UNPACK: "codes = unpack(packed, shape.numel()).view(len(least), -1)",
        },
    ),
    Mistake(
        "no smallest value",
        "the levels start at 0, and all that is negative becomes 0: they start at the smallest "
        "number of the group",
        edits={LEAST: "least = torch.zeros(len(rows), 1)"},
    ),
    Mistake(
        "divides by 4",
        "4 levels have 3 steps between them: the largest number of a group is out of reach. "
        "Divide the range by 3",
        edits={STEP: STEP.replace("/ 3", "/ 4")},
        violates="a third of its range",
    ),
    Mistake(
        "bytes as codes",
        "each code takes a byte: `pack` puts four into one",
        edits={
            KEEP: KEEP.replace("pack(codes.to(torch.uint8))", "codes.to(torch.uint8)"),
            UNPACK: "codes = packed",
        },
        violates="in 2 bits a number",
    ),
    Mistake(
        "8 bits",
        "this keeps 8 bits a number: the card asks for 2",
        edits={
            STEP: STEP.replace("/ 3", "/ 255"),
            CODES: CODES.replace("3)", "255)"),
            KEEP: KEEP.replace("pack(codes.to(torch.uint8))", "codes.to(torch.uint8)"),
            UNPACK: "codes = packed",
        },
    ),
    Mistake(
        "keeps the tensor",
        "nothing is compressed: the tensor is kept as it is",
        edits={INTEGERS: "if True:"},
        violates="at most 3 bits a number",
    ),
    Mistake(
        "keeps the rows",
        "the uncompressed numbers are kept next to the packed ones: return only what is needed to "
        "come back",
        edits={KEEP: KEEP.replace("return ", "return rows, "), SAVED: f"_, {SAVED}"},
    ),
    Mistake(
        "compresses parameters",
        "the weights are compressed, too. That saves nothing, for they stay in memory anyway, and "
        "it spoils the gradients of everything before the layer: leave them alone",
        edits={WEIGHT: "if False:"},
        violates="the model's parameters",
    ),
    Mistake(
        "knows parameters by their type",
        "parameters are left alone, but not views of them: a linear layer saves its weight "
        "transposed, which is another object on the same memory. Compare "
        "`untyped_storage().data_ptr()`",
        edits={WEIGHT: "if isinstance(tensor, nn.Parameter):"},
        violates="and views of them",
    ),
    Mistake(
        "compares the first number's address",
        "parts of a parameter, such as `p[1:]`, are compressed: `data_ptr()` is the address of a "
        "view's first number. All views have the same `untyped_storage().data_ptr()`",
        edits={
            WEIGHTS: "weights = {p.data_ptr() for p in model.parameters()}",
            WEIGHT: "if tensor.data_ptr() in weights:",
        },
    ),
    Mistake(
        "integers are compressed",
        "integers and masks are compressed, too: indices and masks must come back exactly",
        edits={INTEGERS: "if False:"},
        violates="what is not floating-point",
    ),
    Mistake(
        "float32 comes back",
        "a 16-bit tensor comes back in float32: keep its dtype, and end with `.to(dtype)`",
        edits={BACK: BACK.replace(".to(dtype)", "")},
        violates="Shape and dtype come back",
    ),
    Mistake(
        "flat comes back",
        "the numbers come back flat: keep the shape, and end with `.view(shape)`",
        edits={BACK: BACK.replace(".view(shape)", "")},
    ),
    Mistake(
        "a smallest value in bf16",
        "the smallest value of a group is rounded to bf16, and all levels with it: keep it in "
        "float32",
        edits={LEAST: "least = rows.amin(1, keepdim=True).bfloat16().float()"},
        violates="groups of equal numbers come back exactly",
    ),
    Mistake(
        "a smallest step",
        "groups with a small range, 1e-9 for one, come back too coarse. Replace only a step of 0, "
        "and not all below 1e-6 or so, and keep the step and the smallest value in float32",
        edits={STEP: f"{STEP.replace('(rows', '((rows')}).clamp(min=1e-6)"},
    ),
    Mistake(
        "multiples of 64 only",
        "only a multiple of 64 numbers can be packed: pad the last group",
        edits={ROWS: "rows = flat.view(-1, 64)"},
        violates="the last group may be filled up",
    ),
    Mistake(
        "the tail is lost",
        "numbers past the last multiple of 64 are lost: pad the last group",
        edits={ROWS: "rows = flat[: len(flat) // 64 * 64].view(-1, 64)"},
    ),
    Mistake(
        "views only",
        "`view` does not take a transposed tensor: use `flatten()` or `reshape(-1)`",
        edits={FLAT: "flat = tensor.detach().view(-1).float()"},
        violates="any shape and strides",
    ),
    Mistake(
        "changes the tensor",
        "the numbers that autograd saves are those of the activation, and you change them, as "
        "`sub_` does: make new tensors",
        edits={
            ROWS: f"if len(flat) % 64:\n    flat = {PADDED}\nrows = flat.view(-1, 64)",
            CODES: CODES.replace("rows - least", "rows.sub_(least)"),
        },
        violates="they stay unchanged",
    ),
    Mistake(
        "keeps the graph",
        "what is kept requires a gradient, and with it autograd keeps the whole graph: work on "
        "`tensor.detach()`",
        edits={FLAT: FLAT.replace("detach().", "")},
        violates="nothing that is kept requires a gradient",
    ),
]

compressed_hooks = Exercise(card, right, cases, mistakes, messages=SAID, tolerance=1e-5)
