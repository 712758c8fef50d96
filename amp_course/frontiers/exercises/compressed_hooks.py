"""Exercise 5 of chapter 12: activations in 2 bits for the backward pass."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from amp_course.checking import Card, Case, Exercise, Mistake, families
from amp_course.frontiers.exercises._hooks import (
    ERROR,
    Hooks,
    groups,
    independence,
    layers,
    mean,
    tensors,
)
from amp_course.frontiers.packing import pack as pack_codes
from amp_course.frontiers.packing import unpack as unpack_codes

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
    "numbers in groups of 64 neighbours; the last group may be filled up, with zeros or with one "
    "of its own numbers. Each group also keeps its smallest value and a step, a third of its "
    "range, in float32, so that full groups take at most 3 bits a number. The levels are the "
    "smallest value plus 0, 1, 2 or 3 steps. Each number goes to one of the two levels around it, "
    "at random, with draws from the generator, independently of the others, so that the mean is "
    "right. Shape and dtype come back, and full groups of equal numbers come back exactly. Leave "
    "alone what is not floating-point, the model's parameters, and views of them. Tensors are "
    "finite and may have any shape and strides; they stay unchanged, and nothing that is kept "
    "requires a gradient.",
    hints=(
        "Which tensors must come back exactly? A linear layer saves its weight transposed. What "
        "do a tensor and a view of it have in common?",
        "`t.untyped_storage().data_ptr()` is the same for all views. For all other tensors: "
        "`t.detach().float().flatten()`, pad, `view(-1, 64)`, then `amin(1, keepdim=True)` and the "
        "step. What if the step is 0? You may use `pack` and `unpack`.",
        "`codes = ((rows - least) / width + torch.rand(rows.shape, "
        "generator=generator)).floor().clamp(0, 3)`, where width is the step, or 1 if the step is "
        "0. Keep `pack(codes.to(torch.uint8))`, least, step, shape and dtype. The numbers come "
        "back as `least + codes * step`.",
    ),
    why="Activations take most of the memory in training. Weight gradients are linear in what a "
    "linear layer saves, so noise of mean 0 leaves them right on average.",
    alternative="`amp_course.frontiers.activations.CompressedActivations` follows `grad_fn` to see "
    "whether a tensor was made from a parameter alone, so it also recognizes the copies that "
    "autocast makes.",
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
        return pack_codes(codes.to(torch.uint8)), least, step, tensor.shape, tensor.dtype

    def unpack_hook(saved: Any) -> Any:
        if isinstance(saved, torch.Tensor):
            return saved
        packed, least, step, shape, dtype = saved
        codes = unpack_codes(packed, 64 * len(least)).view(-1, 64)
        values = least + codes * step
        return values.flatten()[: shape.numel()].view(shape).to(dtype)

    return pack_hook, unpack_hook


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Means over many copies of a group, groups of many ranges, other tensors, and a linear layer.

    A right answer fails less than once in 10⁶ checks: a mean is compared within 6 standard errors.
    """
    seed = draw.getrandbits(31)
    numbers = torch.Generator().manual_seed(seed + 1)
    model = nn.Sequential(nn.Linear(64, 48, bias=False), nn.Tanh(), nn.Linear(48, 32))
    for p in model.parameters():
        p.data = torch.randn(p.shape, generator=numbers)
    hooks = Hooks(answer, model, seed)
    yield mean(hooks, numbers)
    yield groups(hooks, numbers)
    yield independence(answer, model, seed)
    yield from tensors(hooks, numbers)
    yield Case("", layers(hooks, model, numbers))


PARAMETERS = "weights = {p.untyped_storage().data_ptr() for p in model.parameters()}"
IS_PARAMETER = "if tensor.untyped_storage().data_ptr() in weights:"
IS_INTEGER = "if not tensor.is_floating_point():"
FLAT = "flat = tensor.detach().float().flatten()"
ROWS = "rows = pad(flat, (0, -len(flat) % 64)).view(-1, 64)"
LEAST = "least = rows.amin(1, keepdim=True)"
STEP = "step = (rows.amax(1, keepdim=True) - least) / 3"
NOISE = "noise = torch.rand(rows.shape, generator=generator)"
CODES = "codes = ((rows - least) / width + noise).floor().clamp(0, 3)"
KEEP = "return pack_codes(codes.to(torch.uint8)), least, step, tensor.shape, tensor.dtype"
SAVED = "packed, least, step, shape, dtype = saved"
UNPACK = "codes = unpack_codes(packed, 64 * len(least)).view(-1, 64)"
BACK = "return values.flatten()[: shape.numel()].view(shape).to(dtype)"
IN_BYTES = {
    KEEP: KEEP.replace("pack_codes(codes.to(torch.uint8))", "codes.byte()"),
    UNPACK: "codes = packed",
}
ATTACHED = (
    "{case}, what is kept requires a gradient, so autograd keeps the whole graph. Work on "
    "`tensor.detach()`"
)
CHANGED = "{case}, your function changes the tensor that autograd saves. Make new tensors"

mistakes = [
    Mistake(
        "rounds to nearest",
        "numbers go to the nearest level: {seen}. Add noise from 0 to 1, then take the floor",
        edits={CODES: CODES.replace(" + noise).floor()", ").round()")},
        violates="at random",
    ),
    Mistake(
        "rounds down",
        "numbers round down: {seen}. Add noise from 0 to 1 before you take the floor",
        edits={CODES: CODES.replace(" + noise", "")},
    ),
    Mistake(
        "noise and nearest",
        "noise from 0 to 1, then rounding to nearest adds half a step: {seen}. Take the floor",
        edits={CODES: CODES.replace("floor", "round")},
        violates="so that the mean is right",
    ),
    Mistake(
        "noise of mean 0 and floor",
        "noise around 0, then the floor takes half a step away: {seen}. Add noise from 0 to 1",
        edits={CODES: CODES.replace("+ noise", "+ noise - 0.5")},
    ),
    Mistake(
        "normal noise",
        "the noise is normal, but has to be uniform from 0 to 1: {seen}",
        edits={NOISE: NOISE.replace("rand(", "randn(")},
    ),
    Mistake(
        *families.TOSSES_A_COIN,
        edits={CODES: CODES.replace("noise", "(noise < 0.5)")},
        violates="one of the two levels around it",
    ),
    Mistake(
        "one draw for each group",
        "one draw decides for a whole group. Draw for each element, `torch.rand(rows.shape, …)`",
        edits={NOISE: NOISE.replace("rows.shape", "(len(rows), 1)")},
        violates="independently of the others",
    ),
    Mistake(
        "one draw for all groups",
        "all groups share 64 draws. Draw for each element, `torch.rand(rows.shape, …)`",
        edits={NOISE: NOISE.replace("rows.shape", "64")},
    ),
    Mistake(
        *families.DRAWS_FROM_ELSEWHERE,
        edits={NOISE: "noise = torch.rand(rows.shape)"},
        violates="with draws from the generator",
    ),
    Mistake(
        *families.SAME_DRAWS,
        edits={NOISE: "noise = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0))"},
    ),
    Mistake(
        "one scale for all",
        "all groups share one smallest value and one step. Compute both for each row",
        edits={
            LEAST: "least = rows.amin().repeat(len(rows), 1)",
            STEP: "step = (rows.amax().repeat(len(rows), 1) - least) / 3",
        },
        violates="in groups of 64 neighbours",
    ),
    Mistake(
        "one group for each row",
        "groups are larger than 64 numbers. Each has to hold 64, whatever the shape",
        edits={
            ROWS: "rows = flat.view(len(tensor) if tensor.dim() else 1, -1)",
            UNPACK: "codes = unpack_codes(packed, shape.numel()).view(len(least), -1)",
        },
    ),
    Mistake(
        "no smallest value",
        "the levels start at 0, so negative numbers become 0. Start at the group's smallest number",
        edits={LEAST: "least = torch.zeros(len(rows), 1)"},
    ),
    Mistake(
        "divides by 4",
        "the levels do not reach a group's largest number. 4 levels have 3 steps: divide by 3",
        edits={STEP: STEP.replace("/ 3", "/ 4")},
        violates="a third of its range",
    ),
    Mistake(
        "bytes as codes",
        "each code takes a byte. `pack` puts four codes into one",
        edits=IN_BYTES,
        violates="in 2 bits a number",
    ),
    Mistake(
        "8 bits",
        "this keeps 8 bits a number, and the task asks for 2",
        edits=IN_BYTES | {STEP: STEP.replace("3", "255"), CODES: CODES.replace("3", "255")},
    ),
    Mistake(
        "keeps the tensor",
        "nothing is compressed: the tensor is kept as it is",
        edits={IS_INTEGER: "if True:"},
        violates="at most 3 bits a number",
    ),
    Mistake(
        "keeps the rows",
        "the uncompressed numbers are kept, too. Keep only what you need to unpack",
        edits={KEEP: KEEP.replace("return ", "return rows, "), SAVED: f"_, {SAVED}"},
    ),
    Mistake(
        "compresses parameters",
        "the weights are compressed, too. They stay in memory anyway, so this saves nothing, and "
        "it makes the gradients of all earlier layers wrong. Leave them alone",
        edits={IS_PARAMETER: "if False:"},
        violates="the model's parameters",
    ),
    Mistake(
        "knows parameters by their type",
        "parameters are left alone, but not views of them, such as the transposed weight that a "
        "linear layer saves. Compare `untyped_storage().data_ptr()`",
        edits={IS_PARAMETER: "if isinstance(tensor, nn.Parameter):"},
        violates="and views of them",
    ),
    Mistake(
        "compares the first number's address",
        "parts of a parameter, such as `p[1:]`, are compressed. `data_ptr()` is the address of a "
        "view's first number; `untyped_storage().data_ptr()` is the same for all views",
        edits={
            PARAMETERS: "weights = {p.data_ptr() for p in model.parameters()}",
            IS_PARAMETER: "if tensor.data_ptr() in weights:",
        },
    ),
    Mistake(
        "integers are compressed",
        "integers and masks are compressed, too, and have to come back exactly",
        edits={IS_INTEGER: "if False:"},
        violates="what is not floating-point",
    ),
    Mistake(
        "float32 comes back",
        "a 16-bit tensor comes back in float32. Keep its dtype, and end with `.to(dtype)`",
        edits={BACK: BACK.replace(".to(dtype)", "")},
        violates="Shape and dtype come back",
    ),
    Mistake(
        "flat comes back",
        "the numbers come back flat. Keep the shape, and end with `.view(shape)`",
        edits={BACK: BACK.replace(".view(shape)", "")},
    ),
    Mistake(
        "a smallest value in bf16",
        "a group's smallest value is rounded, which shifts all levels. Keep it in float32",
        edits={LEAST: f"{LEAST}.bfloat16().float()"},
        violates="groups of equal numbers come back exactly",
    ),
    Mistake(
        "a smallest step",
        "groups with a small range, such as 1e-9, come back too coarse. Replace only a step of 0, "
        "not all below 1e-6 or so, and keep the step and the smallest value in float32",
        edits={STEP: f"{STEP.replace('(rows', '((rows')}).clamp(min=1e-6)"},
    ),
    Mistake(
        "multiples of 64 only",
        "only a multiple of 64 numbers can be packed. Pad the last group",
        edits={ROWS: "rows = flat.view(-1, 64)"},
        violates="the last group may be filled up",
    ),
    Mistake(
        "the tail is lost",
        "numbers past the last multiple of 64 are lost. Pad the last group",
        edits={ROWS: "rows = flat[: len(flat) // 64 * 64].view(-1, 64)"},
    ),
    Mistake(
        "views only",
        "`view` does not work on a transposed tensor. Use `flatten()` or `reshape(-1)`",
        edits={FLAT: "flat = tensor.detach().view(-1).float()"},
        violates="any shape and strides",
    ),
    Mistake(
        "changes its input",
        CHANGED,
        edits={
            ROWS: f"if len(flat) % 64:\n    {ROWS}\nelse:\n    rows = flat.view(-1, 64)",
            CODES: CODES.replace("rows - least", "rows.sub_(least)"),
        },
        violates="they stay unchanged",
    ),
    Mistake(
        "keeps the graph",
        ATTACHED,
        edits={FLAT: FLAT.replace("detach().", "")},
        violates="nothing that is kept requires a gradient",
    ),
]

compressed_hooks = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages={
        "what is kept": ATTACHED,
        "the tensor": CHANGED,
        "the mean": "{seen}",
        ERROR: "{case}, a number moves by {far} of its group's steps. It may move by one at most",
        "two calls": "two calls give the same result. Draw new numbers for each",
        "the same seed": "a generator of the same seed gives another result. Draw from it alone",
        "the spread": "the number of elements of a group that go up varies {got} from group to "
        "group. Draw for each element, independently of the others",
        **{
            what: f"{what} is wrong. Leave parameters, and views of them, alone"
            for what in (
                "the gradient of what a parameter is multiplied by",
                "the gradient of a linear layer's input",
                "what comes back of a part of a parameter",
            )
        },
    },
)
