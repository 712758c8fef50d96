"""Exercise 6 of chapter 06: evaluate a model with dropout and batch norm, under autocast."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    call_answer,
    families,
    read_number,
    show_value,
)
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
        "There are three switches: one is the model's, two are torch's. The last batch is smaller, "
        "so count.",
        "`model.eval()`, then `with torch.inference_mode(), torch.autocast(inputs.device.type, "
        "dtype=torch.bfloat16):`.",
        "Keep `layer.training` of every `layer` in `model.modules()` first, and restore each one "
        "last, best in a `finally`.",
    ),
    why="If you evaluate in another mode or dtype than you think, nobody can reproduce your "
    "accuracy.",
    alternative="one call on the whole test set, where it fits into memory, as in section 2 of "
    "the chapter.",
)


def right(model: Any, batches: Any) -> Any:
    modes = {layer: layer.training for layer in model.modules()}
    model.eval()
    hits = count = 0
    try:
        for inputs, targets in batches:
            with torch.inference_mode(), torch.autocast(inputs.device.type, dtype=torch.bfloat16):
                logits = model(inputs)
            hits += (logits.argmax(dim=-1) == targets).sum().item()
            count += len(targets)
    finally:
        for layer, mode in modes.items():
            layer.training = mode
    return hits / count


MODES = {True: "train", False: "eval"}
STATE = "the state of the model afterwards"
REQUIRES = "`requires_grad` of the parameters afterwards"
CALLS = "the calls that the accuracy is of"
LEFT = "the modes that you leave"
SIZES = (160, 160, 35)  # the last batch is smaller; bf16 counts to 256 only
# The model's mode, the layers in the other one, how many predictions of each batch are right
FOUND: dict[str, tuple[bool, tuple[str, ...], tuple[int, ...]]] = {
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
    generator, before = torch.Generator().manual_seed(6), list[float]()
    for case, (was_training, others, hits) in FOUND.items():
        head = nn.Sequential(nn.Dropout(0.5), nn.Linear(24, 6))
        model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), head).eval()
        for tensor in filter(torch.is_floating_point, [*model.parameters(), *model.buffers()]):
            shift = -0.25 if tensor.dim() > 1 else 0.25
            tensor.data = 0.5 * torch.rand(tensor.shape, generator=generator) + shift
        batches, seen = _batches(model, generator, hits), _watch(model.train(was_training))
        for name in others:
            model.get_submodule(name).training = not was_training
        model[1].requires_grad_(not others)
        found = {layer: layer.training for layer in model.modules()}
        accuracy = read_number(call_answer(answer, case, model, batches), case)
        before.append(sum(hits) / sum(SIZES))
        shares = {"all calls so far": sum(before) / len(before), "the first call": before[0]}
        near = [what for what, share in shares.items() if abs(accuracy - share) < 1e-6]
        left = [
            f"{f'layer “{name}”' if name else 'the model itself'} (now {MODES[one.training]})"
            for name, one in model.named_modules()
            if one.training != found.get(one)
        ]
        outputs: dict[str, Any] = {"whether the model ran": "yes" if seen else "no"}
        for output, got in seen.items():
            several = " in others" if len(got) > 1 else ""
            outputs[output] = " in some layers and ".join(sorted(got)) + several
        outputs |= {
            STATE: [flat(model.state_dict().values()), repr(model)],
            REQUIRES: [one.requires_grad for one in model.parameters()],
            CALLS: near[0] if near and len(before) > 1 else "this call",
            "the accuracy": accuracy,
            LEFT: ", ".join(left),
        }
        yield Case(case, outputs)


def _batches(
    model: nn.Module, generator: torch.Generator, hits: tuple[int, ...]
) -> list[tuple[Tensor, Tensor]]:
    """Make batches whose predictions are close, but no tie in bf16; the first ones are right."""
    inputs = torch.randn(2000, 12, generator=generator)
    (best, second), (classes, _) = (one.detach().T for one in model(inputs).topk(2))
    clear = (best - second).argsort(descending=True)[: sum(SIZES)]
    split = zip(inputs[clear].split(SIZES), classes[clear].split(SIZES), hits, strict=True)
    return [(x, torch.where(torch.arange(len(x)) < n, y, (y + 1) % 6)) for x, y, n in split]


def _watch(model: nn.Module) -> dict[str, set[str]]:
    """Record how the layers of a model run from now on."""
    seen: dict[str, set[str]] = {}

    def record(layer: nn.Module, args: Any, output: Tensor) -> None:
        gradients = "gradients were off, but not by inference mode"
        if torch.is_grad_enabled():
            gradients = "gradients were on"
        if torch.is_inference_mode_enabled():
            gradients = "inference mode was on"
        for what, values in {
            "the mode": {MODES[layer.training]},
            "the dtype of the weights": {show_value(one.dtype) for one in layer.parameters()},
            "the dtype of the layers' outputs": {show_value(output.dtype)},
            "the gradient mode": {gradients},
        }.items():
            seen.setdefault(f"{what} in the forward pass", set()).update(values)

    for layer in model.modules():
        layer.register_forward_hook(record)
    return seen


EVAL = "model.eval()"
BOTH = "with torch.inference_mode(), torch.autocast(inputs.device.type, dtype=torch.bfloat16):"
FORWARD, HIT = "logits = model(inputs)", "hits += (logits.argmax(dim=-1) == targets).sum().item()"
COUNT = "count += len(targets)"
RESTORE = "layer.training = mode"
RETURN = "return hits / count"

mistakes = [
    Mistake(
        *families.NO_EVAL,
        edits={EVAL: "pass"},
        violates="in eval mode",
    ),
    Mistake(
        *families.CONVERTS_THE_MODEL,
        edits={EVAL: "model.bfloat16().eval()", FORWARD: "logits = model(inputs.bfloat16())"},
    ),
    Mistake(
        "eval mode for the model alone",
        "the model itself was in eval mode, but its layers were not. Call `model.eval()`, which "
        "reaches every layer",
        edits={"model.eval()": "model.training = False"},
    ),
    Mistake(
        *families.NO_AUTOCAST,
        edits={BOTH: "with torch.inference_mode():"},
        violates="under bf16 autocast",
    ),
    Mistake(
        *families.GRADIENTS_ON,
        edits={BOTH: BOTH.replace("torch.inference_mode(), ", "")},
        violates="in inference mode",
    ),
    Mistake(
        "mean of accuracies",
        "the small last batch got as much weight as a full one. Add up the right answers and "
        "divide once",
        edits={HIT: HIT.replace(".sum()", ".float().mean()"), COUNT: "count += 1"},
    ),
    Mistake(
        "all batches as large as the first",
        "the last batch is smaller than the first, but counts as large. Add up `len(targets)`",
        edits={COUNT: "count += len(batches[0][1])"},
    ),
    Mistake(
        "only the first batch",
        "this is the accuracy of the first batch. Go through all of them before you return",
        edits={COUNT: f"{COUNT}\nbreak"},
    ),
    Mistake(
        "only the last batch",
        "this is the accuracy of the last batch. Add up over all of them",
        edits={HIT: HIT.replace("+=", "="), COUNT: "count = len(targets)"},
    ),
    Mistake(
        "not divided",
        "this is the number of right answers. Divide it by the number of all targets",
        edits={RETURN: "return hits"},
    ),
    Mistake(
        "integer division",
        "your accuracy is always 0. If you divide by `//`, use `/`; otherwise check that you "
        "compare predicted classes",
        edits={RETURN: "return hits // count"},
    ),
    Mistake(
        "percent",
        "your accuracy is in percent. Return a share, from 0 to 1",
        edits={RETURN: "return 100 * hits / count"},
        violates="from 0 to 1",
    ),
    Mistake(
        "share of wrong answers",
        "this is the share of wrong predictions. The accuracy is the share of right ones",
        edits={RETURN: "return 1 - hits / count"},
    ),
    Mistake(
        "left in eval mode",
        "the next epoch would train in eval mode. Remember every layer's mode before `eval()`, "
        "and restore it",
        edits={RESTORE: "pass"},
        violates="as you found them",
    ),
    Mistake(
        "always back to train mode",
        "the model was in eval mode and is now in train mode. Remember every layer's mode, and "
        "restore it",
        edits={RESTORE: "model.train()"},
    ),
    Mistake(
        "only the root put back",
        "the model itself has its old mode, but its layers are in eval mode. Restore each of "
        "`model.modules()`",
        edits={RESTORE: "model.training = modes[model]"},
        violates="and all its layers",
    ),
    Mistake(
        "one mode for all layers",
        "every layer was left in the mode of the model itself, but a layer may have another "
        "(`train(…)` sets all the children, too). Restore `training` of each layer",
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
        STATE: "your code changed weights, buffers or settings of the model. Leave all as it was",
        REQUIRES: "your code changed `requires_grad` of parameters. Leave it as it was",
        "whether the model ran": "{case}, the model never ran. Compute the accuracy again in each "
        "call, from this model's outputs",
        "the gradient mode in the forward pass": "{case}, in the forward pass {got}. Use "
        "`torch.inference_mode()`",
        CALLS: "{case}, your accuracy is that of {got}, not of this one. Start to count at 0 in "
        "each call (a default argument such as `counts=[0, 0]` is kept from call to call, and so "
        "is a global)",
        LEFT: "{case}, your code left these in another mode: {got}",
    },
)
