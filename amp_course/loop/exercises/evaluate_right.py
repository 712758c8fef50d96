"""Exercise 6 of chapter 06: evaluate a model with dropout and batch norm, under autocast."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number, show_value
from amp_course.watching.scene import flat

card = Card(
    chapter="loop",
    name="evaluate_right",
    number=6,
    title="Evaluate under autocast",
    difficulty=3,
    importance=4,
    minutes=10,
    lines=11,
    task="Write `evaluate_right(model, batches)`: return the accuracy over all batches, from 0 to "
    "1, in eval mode, in inference mode and under bf16 autocast. Leave the model and all its "
    "layers as you found them, each in its own mode: some may be in eval mode while others train.",
    hints=(
        "Three switches: one is the model's, two are torch's. And watch out: the last batch is "
        "smaller, so count.",
        "`model.eval()`, then `with torch.inference_mode(), torch.autocast(inputs.device.type, "
        "dtype=torch.bfloat16):`.",
        "Keep `layer.training` of every `layer` in `model.modules()` first, and put each one back "
        "last, best in a `finally`.",
    ),
    why="Evaluate in another mode or dtype than you think, and you get an accuracy that nobody "
    "can reproduce.",
    alternative="one call on the whole test set, where it fits into memory, as in section 2 of "
    "the chapter.",
)


def right(model: Any, batches: Any) -> Any:
    modes = {layer: layer.training for layer in model.modules()}
    model.eval()
    hits = count = 0
    with torch.inference_mode(), torch.autocast(batches[0][0].device.type, dtype=torch.bfloat16):
        for inputs, targets in batches:
            hits += (model(inputs).argmax(dim=-1) == targets).sum().item()
            count += len(targets)
    for layer, mode in modes.items():
        layer.training = mode
    return hits / count


MODES = {True: "train", False: "eval"}
SIZES = (160, 160, 35)  # the last batch is smaller; bf16 counts to 256 only
# the model's mode, the layers in the other one, how many predictions of each batch are right
FOUND = {
    "for a model in train mode": (True, (), (130, 121, 10)),
    "for a model in eval mode whose dropout is in train mode": (False, ("3.0",), (9, 20, 34)),
    "for a model in train mode some of whose layers are in eval mode": (
        True,
        ("1", "3", "3.1"),
        (160, 152, 2),
    ),
}


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Evaluate three models, found in different modes; the second is mostly wrong."""
    generator, before = torch.Generator().manual_seed(6), list[tuple[int, ...]]()
    for case, (was_training, others, hits) in FOUND.items():
        head = nn.Sequential(nn.Dropout(0.5), nn.Linear(24, 6))
        model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), head).eval()
        for tensor in filter(torch.is_floating_point, [*model.parameters(), *model.buffers()]):
            tensor.data = 0.5 * torch.rand(tensor.shape, generator=generator) + (
                -0.25 if tensor.dim() > 1 else 0.25
            )
        batches, seen = _batches(model, generator, hits), _watch(model.train(was_training))
        for name in others:
            model.get_submodule(name).training = not was_training
        model[1].requires_grad_(not others)
        found = {layer: layer.training for layer in model.modules()}
        accuracy = read_number(call_answer(answer, case, model, batches), case)
        named = [
            (f"layer “{name}”" if name else "the model itself", one)
            for name, one in model.named_modules()
        ]
        left = {name: one for name, one in named if one.training != found.get(one)}
        before.append(hits)
        yield Case(
            case,
            {
                "whether the model ran": "yes" if seen else "no",
                **{
                    output: " in some layers, ".join(sorted(got)) + " in others" * (len(got) > 1)
                    for output, got in seen.items()
                },
                "the state of the model afterwards": [
                    flat(model.state_dict().values()),
                    repr(model),
                ],
                "`requires_grad` of the parameters afterwards": [
                    one.requires_grad for one in model.parameters()
                ],
                "the calls that the accuracy is of": _of_which_calls(accuracy, hits, before),
                "the accuracy": accuracy,
                "the modes that you leave": ", ".join(
                    f"{name} (now {MODES[one.training]})" for name, one in left.items()
                ),
            },
        )


def _batches(
    model: nn.Module, generator: torch.Generator, right_ones: tuple[int, ...]
) -> list[tuple[Tensor, Tensor]]:
    """Make batches whose predictions are unsure, but no tie even in bf16;
    the first of each are right.
    """
    inputs = torch.randn(2000, 12, generator=generator)
    (best, second), (classes, _) = (one.detach().T for one in model(inputs).topk(2))
    clear = (best - second).argsort(descending=True)[: sum(SIZES)]
    split = zip(inputs[clear].split(SIZES), classes[clear].split(SIZES), right_ones, strict=True)
    return [(x, torch.where(torch.arange(len(x)) < hits, y, (y + 1) % 6)) for x, y, hits in split]


def _of_which_calls(accuracy: float, hits: tuple[int, ...], before: list[tuple[int, ...]]) -> str:
    """Name the calls whose accuracy this is: "this call", "all calls so far", "the first call"."""
    many, total = [*map(sum, before)], sum(SIZES)
    for what, share in (
        ("all calls so far", sum(many) / total / max(1, len(many))),
        ("the first call", many[0] / total),
    ):
        if abs(accuracy - share) < 1e-6 and sum(hits) / total != share:
            return what
    return "this call"


def _watch(model: nn.Module) -> dict[str, set[str]]:
    """Note how the layers of a model run, from now on."""
    seen: dict[str, set[str]] = {}

    def look(layer: nn.Module, args: Any, output: Tensor) -> None:
        grad = (
            "gradients were on"
            if torch.is_grad_enabled()
            else "gradients were off, but not by inference mode"
        )
        noted = {
            "the mode": {MODES[layer.training]},
            "the dtype of the weights": {show_value(one.dtype) for one in layer.parameters()},
            "the dtype of the layers' outputs": {show_value(output.dtype)},
            "the gradient mode": {
                "inference mode was on" if torch.is_inference_mode_enabled() else grad
            },
        }
        for what, values in noted.items():
            seen.setdefault(f"{what} in the forward pass", set()).update(values)

    for layer in model.modules():
        layer.register_forward_hook(look)
    return seen


EVAL, RESTORE, RETURN = "model.eval()", "layer.training = mode", "return hits / count"
BOTH = (
    "with torch.inference_mode(), torch.autocast(batches[0][0].device.type, dtype=torch.bfloat16):"
)
HIT, COUNT = (
    "hits += (model(inputs).argmax(dim=-1) == targets).sum().item()",
    "count += len(targets)",
)

mistakes = [
    Mistake(
        "no eval()",
        "dropout and batch norm ran as in training: call `model.eval()` first, which reaches "
        "every layer",
        edits={EVAL: "pass"},
        violates="in eval mode",
    ),
    Mistake(
        "converts the weights",
        "the weights were converted to another dtype: leave that out. Autocast casts copies and "
        "keeps them fp32",
        edits={EVAL: "model.bfloat16().eval()", HIT: HIT.replace("inputs", "inputs.bfloat16()")},
    ),
    Mistake(
        "no autocast",
        "the model ran in fp32: call it under `torch.autocast(inputs.device.type, "
        "dtype=torch.bfloat16)`",
        edits={BOTH: "with torch.inference_mode():"},
        violates="under bf16 autocast",
    ),
    Mistake(
        "records graphs",
        "gradients were on, so autograd recorded the evaluation: run it in "
        "`torch.inference_mode()`",
        edits={BOTH: BOTH.replace("torch.inference_mode(), ", "")},
        violates="in inference mode",
    ),
    Mistake(
        "mean of accuracies",
        "the small last batch got as much weight as a full one: add up the right answers and "
        "divide once",
        edits={HIT: HIT.replace(".sum()", ".float().mean()"), COUNT: "count += 1"},
    ),
    Mistake(
        "all batches as large as the first",
        "not every batch is as large as the first, and the last one is smaller: add up "
        "`len(targets)`",
        edits={COUNT: "count += len(batches[0][1])"},
    ),
    Mistake(
        "only the first batch",
        "this is the accuracy of the first batch: go through all of them before you return",
        edits={COUNT: f"{COUNT}\nbreak"},
    ),
    Mistake(
        "only the last batch",
        "this is the accuracy of the last batch: add up over all of them",
        edits={HIT: HIT.replace("+=", "="), COUNT: "count = len(targets)"},
    ),
    Mistake(
        "not divided",
        "this is the number of right answers: divide it by the number of all targets",
        edits={RETURN: "return hits"},
    ),
    Mistake(
        "integer division",
        "your accuracy is always 0: if you divide by `//`, use `/`; else see whether you compare "
        "predicted classes",
        edits={RETURN: "return hits // count"},
    ),
    Mistake(
        "percent",
        "your accuracy is in percent: the card asks for a share, from 0 to 1",
        edits={RETURN: "return 100 * hits / count"},
        violates="from 0 to 1",
    ),
    Mistake(
        "share of wrong answers",
        "this is the share of wrong predictions: the accuracy is the share of right ones",
        edits={RETURN: "return 1 - hits / count"},
    ),
    Mistake(
        "left in eval mode",
        "the next epoch would train in eval mode: remember every layer's mode before `eval()`, "
        "and put them back",
        edits={RESTORE: "pass"},
        violates="as you found them",
    ),
    Mistake(
        "always back to train mode",
        "the model was in eval mode and is now in train mode: remember every layer's mode, and "
        "put it back",
        edits={RESTORE: "model.train()"},
    ),
    Mistake(
        "only the root put back",
        "the model itself has its old mode, and its layers are in eval mode: put back each of "
        "`model.modules()`",
        edits={RESTORE: "model.training = modes[model]"},
        violates="and all its layers",
    ),
    Mistake(
        "one mode for all layers",
        "every layer was left in the mode of the model itself, and a layer may have another "
        "(`train(…)` sets all the children, too): put back `training` of each layer",
        edits={RESTORE: "model.train(modes[model])"},
        violates="each in its own mode",
    ),
]

evaluate_right = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages={
        "the state of the model afterwards": "your code changed weights, buffers or settings of "
        "the model: leave all as it was",
        "`requires_grad` of the parameters afterwards": "your code changed `requires_grad` of "
        "parameters: leave it as it was",
        "whether the model ran": "{case}, the model never ran: compute the accuracy again in each "
        "call, from this model's outputs",
        "the gradient mode in the forward pass": "{case}, in the forward pass {got}: the card "
        "asks for `torch.inference_mode()`",
        "the calls that the accuracy is of": "{case}, your accuracy is that of {got}, and not of "
        "this one: start to count at 0 in each call (a default argument such as `counts=[0, 0]` "
        "is kept from call to call, and so is a global)",
        "the modes that you leave": "{case}, your code left these in another mode: {got}",
    },
)
