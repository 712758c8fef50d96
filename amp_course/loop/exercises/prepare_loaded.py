"""Exercise 7 of chapter 06: train a model that was loaded in 16 bits."""

import copy  # noqa: F401 (for the edits)
import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, call_answer
from amp_course.kit.dtypes import dtype_name
from amp_course.watching.scene import dtype_names, flat

card = Card(
    chapter="loop",
    name="prepare_loaded",
    number=7,
    title="The dtype you loaded",
    difficulty=3,
    importance=4,
    minutes=8,
    lines=7,
    task="Write `prepare_loaded(model, lr)`: `model` was loaded in bf16 or fp16, and some of its "
    "parameters are frozen. Prepare it for training under autocast, in place: convert all "
    "parameters that train and all floating-point buffers to fp32. Frozen parameters keep their "
    "dtype, and integer buffers keep theirs. Keep the parameter objects themselves, since tied "
    "layers share one. Return an `AdamW` with this `lr` that has all parameters that train; frozen "
    "ones among them do no harm.",
    hints=(
        "Which tensors do small updates have to arrive in? A batch norm's running averages are "
        "updated too, and they are no parameters.",
        "`parameter.data = parameter.data.float()` changes the dtype and keeps the object, as "
        "`model.float()` does. But that converts frozen parameters as well.",
        "Do this for each parameter with `requires_grad` and for each buffer with "
        "`is_floating_point()`. Then `torch.optim.AdamW([p for p in model.parameters() if "
        "p.requires_grad], lr=lr)`.",
    ),
    why="In 16 bits most small updates are rounded away. AdamW makes its state in the dtype of "
    "the weights, so one conversion is right for both.",
    alternative="`model.float()`, and then the frozen parameters back to the dtype that they had.",
)


def right(model: Any, lr: float) -> Any:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)


class Net(nn.Module):
    """Predict a token from a token and its position; embedding and head share one weight.

    `spare` is frozen, and unused like `gain`. Its buffers are floating-point too.
    """

    positions: Tensor

    def __init__(self, frozen: str) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(12, 16), nn.Linear(16, 12, bias=False)
        self.head.weight = self.embed.weight
        self.first, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 16)
        self.spare = nn.BatchNorm1d(4).requires_grad_(False)
        self.register_buffer("positions", torch.arange(12))
        self.register_buffer("gain", torch.ones(()))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and not name.startswith(frozen))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.embed(self.positions)[tokens.flip(0)]
        return self.head(self.second(self.norm(self.first(hidden)).tanh()))


FREE = "the number of parameters that train"
OWN = "the number of these that the optimizer has"
TRAIN = "the dtype of the parameters that train"
SAME = "the number of parameters that are the same objects as before"
STEPS = 10


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Prepare two models, look at their dtypes, and train them with small updates."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for dtype, frozen, lr in (
        (torch.bfloat16, "first", 1e-4),
        (torch.float16, "second.weight", 2e-5),
    ):
        loaded = dtype_name(dtype)
        case, model = f"for a model in {loaded}", Net(frozen)
        for tensor in model.parameters():
            values = torch.rand(tensor.shape, generator=generator) / 2 + 0.5
            tensor.data = values * torch.randn(tensor.shape, generator=generator).sign()
        before = {id(one): one for one in model.to(dtype).parameters()}
        floats, integers = (
            [name for name, one in model.named_buffers() if one.is_floating_point() is kind]
            for kind in (True, False)
        )
        optimizer = call_answer(answer, case, model, lr)
        if not isinstance(optimizer, torch.optim.Optimizer):
            kind = type(optimizer).__name__.replace("NoneType", "None")
            raise Wrong(f"your function returned {kind}, not an optimizer")

        now = [*model.parameters()]
        free = [one for one in now if one.requires_grad]
        held = {id(one) for group in optimizer.param_groups for one in group["params"]}
        own, same = sum(id(one) in held for one in free), sum(id(one) in before for one in free)
        outputs = {
            FREE: len(free),
            OWN: own,
            TRAIN: _dtypes(free),
            SAME: sum(id(one) in before for one in now),
            "the dtype of the frozen parameters": _dtypes(p for p in now if not p.requires_grad),
            "the dtype of the floating-point buffers": _dtypes(map(model.get_buffer, floats)),
            "the dtype of the integer buffers": _dtypes(map(model.get_buffer, integers)),
            "the type of the optimizer": type(optimizer).__name__,
            "the learning rate": float(optimizer.param_groups[0]["lr"]),
        }
        evidence = {"own": own, "dtype": outputs[TRAIN], "same": same}
        yield Case(case, outputs, {"loaded": loaded}, evidence)
        start = flat(now)
        if {one.dtype for one in [*free, *map(model.get_buffer, floats)]} == {torch.float32}:
            for _ in range(STEPS):
                tokens = torch.randint(12, (2, 24), generator=generator)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = cross_entropy(model(tokens[0]), tokens[1])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        state = [one for kept in optimizer.state.values() for one in kept.values()]
        outputs = {
            "the dtype of AdamW's state": _dtypes(one for one in state if one.dim()),
            "the change of the parameters": flat(model.parameters()) - start,
        }
        yield Case(f"after {STEPS} steps of training a model in {loaded}", outputs)


def _dtypes(tensors: Iterable[Tensor]) -> str:
    return dtype_names(one.dtype for one in tensors)


FREES, CONVERT = "if parameter.requires_grad:", "parameter.data = parameter.data.float()"
FLOATS, BUFFER = "if buffer.is_floating_point():", "buffer.data = buffer.data.float()"
LOOP = "for parameter in model.parameters():"
RETURN = "return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=lr)"
OPTIMIZER = RETURN.replace("return", "optimizer =")
REPLACE = """for layer in model.modules():
    for name, p in [*layer.named_parameters(recurse=False)]:
        setattr(layer, name, nn.Parameter(p.float(), p.requires_grad) if p.requires_grad else p)"""

mistakes = [
    Mistake(
        "left in 16 bits",
        "the parameters that train are still in {loaded}. Most small updates are rounded away "
        "there, and AdamW's state is made in that dtype too. Autocast does not change either, so "
        "convert them to fp32, by `p.data = p.data.float()` (`p = …` only gives a new name)",
        edits={CONVERT: "pass"},
        violates="convert all parameters that train",
    ),
    Mistake(
        "some left in 16 bits",
        "some of the parameters that train are still in {loaded}. Convert each one with "
        "`requires_grad`, biases and norms too",
        edits={FREES: "if parameter.requires_grad and parameter.dim() > 1:"},
    ),
    Mistake(
        "copies",
        "the optimizer updates copies, so training leaves the model as it is, in {loaded}. Convert "
        "the model that you were given, and pass its own parameters",
        edits={LOOP: f"model = copy.deepcopy(model)\n{LOOP}"},
        violates="in place",
    ),
    Mistake(
        "optimizer first",
        "the optimizer has the old parameters, and the model now uses new ones, which nothing "
        "updates. Convert `parameter.data`, which keeps the objects",
        edits={CONVERT: "pass", RETURN: f"{OPTIMIZER}\n{REPLACE}\nreturn optimizer"},
    ),
    Mistake(
        "untied",
        "the tied layers shared one parameter, and now each trains its own. A new `nn.Parameter` "
        "for each layer unties them: convert `parameter.data`, which keeps the objects",
        edits={CONVERT: "pass", RETURN: f"{REPLACE}\n{RETURN}"},
        violates="tied layers share one",
    ),
    Mistake(
        "new objects",
        "the model has new parameter objects, so a list of the old ones, for clipping say, is out "
        "of date. Convert `parameter.data`, which keeps the objects",
        edits={
            CONVERT: "pass",
            RETURN: f"{REPLACE}\nmodel.head.weight = model.embed.weight\n{RETURN}",
        },
        violates="Keep the parameter objects themselves",
    ),
    Mistake(
        "frozen ones train",
        "the frozen parameters now train as well. Leave their `requires_grad` as it is, and "
        "convert only the others",
        edits={FREES: "if parameter.requires_grad_():"},
    ),
    Mistake(
        "frozen ones converted",
        "the frozen parameters are in fp32 too, which takes twice the memory and gains nothing, "
        "since no update has to arrive in them. Convert only those with `requires_grad`",
        edits={FREES: "if True:"},
        violates="Frozen parameters keep their dtype",
    ),
    Mistake(
        "buffers left in 16 bits",
        "the floating-point buffers are still in {loaded}. A batch norm's running averages move "
        "in small steps too. Convert `model.buffers()` as well, by `b.data = b.data.float()` "
        "(`b = …` only gives a new name)",
        edits={FLOATS: "if False:"},
        violates="all floating-point buffers",
    ),
    Mistake(
        "integer buffers converted",
        "the integer buffers are floating-point now, and neither a count nor an index should be. "
        "Convert only buffers with `is_floating_point()`",
        edits={FLOATS: "if True:"},
        violates="integer buffers keep theirs",
    ),
    Mistake(
        "the default learning rate",
        "the learning rate is AdamW's default, 0.001. Pass `lr=lr`",
        edits={RETURN: RETURN.replace(", lr=lr", "")},
        violates="with this `lr`",
    ),
]

prepare_loaded = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages={
        FREE: "{case}, {got} parameters train, and {want} is right. Frozen ones have to stay "
        "frozen, and tied layers share one. A new `nn.Parameter` is a new object, and trains",
        OWN: "{case}, the optimizer has {got} of the {want} parameters that train. Make it for "
        "the parameters that the model has when your function returns",
    },
)
