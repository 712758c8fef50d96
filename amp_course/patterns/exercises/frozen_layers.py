"""Exercise 8 of chapter 07: fine-tune a head on a frozen backbone in fp16."""

import random
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    call_answer,
    is_blank,
    read_tensor,
)
from amp_course.watching.scene import dtype_names, flat

card = Card(
    chapter="patterns",
    name="frozen_layers",
    number=8,
    title="Half frozen",
    difficulty=3,
    importance=4,
    minutes=15,
    lines=14,
    task="Write the module `FineTuned(backbone, head)` and check it with "
    "`exercises.frozen_layers.check(FineTuned)`. The backbone, whose layers may be nested, is "
    "frozen: all its matrices in fp16 (biases and norms may stay in float32), `requires_grad` "
    "False, and all of it in eval mode, from the start and after each `train` and `eval`. The "
    "float32 head is trained, and the head follows `train` and `eval`. The module returns "
    "head(backbone(inputs)), with or without an fp16 region around the call. "
    "`trainable()` returns the head's parameters.",
    hints=(
        "Which gradients does the scaler unscale, and in which dtype? What changes in a batch norm "
        "even without gradients?",
        "`backbone.half().requires_grad_(False)`. In `train`: `super().train(mode)`, "
        "`self.backbone.eval()`, `return self`.",
        "Run the backbone in an fp16 region under `no_grad` and give the head `features.float()`. "
        "Call `self.train()` in `__init__`.",
    ),
    why="Frozen weights need no gradients, no optimizer state and half the memory. Trained weights "
    "have to stay in float32.",
    alternative="keep the batch norms in float32 and give each Linear layer of the backbone a "
    "pre-hook that passes it `x.half()`.",
)


class FineTuned(nn.Module):
    """The right answer."""

    def __init__(self, backbone: Any, head: Any) -> None:
        super().__init__()
        self.backbone = backbone.half().requires_grad_(False)
        self.head = head
        self.train()

    def forward(self, inputs: Any) -> Any:
        with torch.no_grad(), torch.autocast(inputs.device.type, dtype=torch.float16):
            features = self.backbone(inputs)
        return self.head(features.float())

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.backbone.eval()
        return self

    def trainable(self) -> Any:
        return self.head.parameters()


PARTS = ("backbone", "head")
RETURNED = "the number of parameters that `trainable()` returns"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Look at modules, parameters and modes, run the model with and without a region, train it."""
    for name in ("__init__", "forward", "train", "trainable"):
        if isinstance(answer, type) and is_blank(vars(answer).get(name)):
            raise Wrong(f"`{name}` is still to be written")
    inner = nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.5))
    backbone = nn.Sequential(nn.Linear(16, 20), nn.BatchNorm1d(20), nn.Dropout(0.2), inner)
    head = nn.Sequential(nn.Linear(24, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 5))
    for part, module in zip(PARTS, (backbone, head), strict=True):
        for layer in module.modules():
            vars(layer)["part"] = part  # also in copies of the layer
    nn.init.normal_(inner[1].running_mean)  # type: ignore[arg-type]
    inputs, targets = torch.randn(4, 12, 16), torch.randint(0, 5, (4, 12))

    model = call_answer(answer, "for a backbone and a head", backbone, head)
    if not isinstance(model, nn.Module):
        raise Wrong(f"your answer makes a {type(model).__name__}, not an `nn.Module`")
    leaves = [module for module in model.modules() if not [*module.children()]]
    layers = {part: [one for one in leaves if vars(one).get("part") == part] for part in PARTS}
    found = {f"the number of the {p}'s layers in `model.modules()`": len(layers[p]) for p in PARTS}
    yield Case("", found)

    given = _trainable(model, "at `trainable()`")
    ids = {id(p) for p in given}
    trained = [p for p in model.parameters() if id(p) in ids]  # in the model's order
    frozen = [p for p in model.parameters() if id(p) not in ids]

    def state() -> dict[str, Any]:
        outputs = dict[str, Any]()
        for what, parameters in (("head's parameters", given), ("backbone's matrices", frozen)):
            outputs[f"the dtype of the {what}"] = dtype_names(
                p.dtype for p in parameters if p.dim() > 1
            )
            outputs[f"the number of the {what.split()[0]} parameters that require gradients"] = sum(
                p.requires_grad for p in parameters
            )
        return outputs

    own = {"the number of these that are the model's own": len(trained)}
    yield Case("in a new model", {RETURNED: len(given), **own, **state()})
    other = call_answer(
        answer,
        "for a second backbone and head",
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
    )
    for case, one in (("at a second `trainable()`", model), ("in a second model", other)):
        yield Case(case, {RETURNED: len(_trainable(one, case))})

    new = {"the mode of the new backbone's layers": _modes(layers["backbone"])}
    for mode in (True, False):
        case = f"after `model.train({mode})`"
        returned = call_answer(model.train, case, mode)
        kind = "None" if returned is None else f"a {type(returned).__name__}"
        outputs: dict[str, Any] = {
            "the return value of `train`": "the model itself" if returned is model else kind
        }
        outputs |= {f"the mode of the {part}'s layers": _modes(layers[part]) for part in PARTS}
        outputs["`training` of the model itself"] = model.training
        yield Case(case, outputs | state())
    yield Case("before the first call of `train`", new)

    regions = ("with no region around your model", "in an fp16 region around your model")
    for enabled, case in enumerate(regions):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=bool(enabled)):
            got = call_answer(model, case, inputs[0])
        output = read_tensor(got, case, "logits", (12, 5), "`model(inputs)` returned").float()
        yield Case(f"after a pass {case}", {"the output": output, **state()})

    model.train()
    before = flat(trained)
    optimizer = torch.optim.SGD(given, lr=0.2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for batch, target, enabled in zip(inputs, targets, (True, False, True, True), strict=True):
        with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            logits = call_answer(model, f"in training, {regions[enabled]}", batch)
            loss = cross_entropy(logits, target)
        if loss.requires_grad:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    outputs = {
        "the output's `requires_grad`": loss.requires_grad,
        "the change of the head's weights": flat(trained) - before,
    }
    for part in PARTS:
        norms = [layer for layer in layers[part] if isinstance(layer, nn.BatchNorm1d)]
        outputs[f"the {part}'s running means"] = flat(norm.running_mean for norm in norms)
    yield Case("after four steps of training", outputs)


def _trainable(model: Any, case: str) -> list[nn.Parameter]:
    if not callable(method := getattr(model, "trainable", None)):
        raise Wrong("`model.trainable` has to be a method: write `def trainable(self): …`")
    got = call_answer(method, case)
    given = list(got) if isinstance(got, Iterable) else [got]
    if others := [type(one).__name__ for one in given if not isinstance(one, nn.Parameter)]:
        raise Wrong(f"`trainable()` gives an object of type {others[0]} instead of a parameter")
    return given


def _modes(layers: list[nn.Module]) -> str:
    return " and ".join(sorted({"training" if one.training else "eval" for one in layers}))


HALF, HEAD = "self.backbone = backbone.half().requires_grad_(False)", "self.head = head"
EVAL, TRAINABLE = "self.backbone.eval()", "return self.head.parameters()"
RETURN = "return self.head(features.float())"

REGION = "with torch.no_grad(), torch.autocast(inputs.device.type, dtype=torch.float16):"

mistakes = [
    Mistake(
        "hidden in a list",
        "the backbone is not among `model.modules()`, so `.to(device)` and `state_dict` miss it. "
        "Assign the module itself to an attribute, not a list or a dict that holds it",
        edits={
            HALF: "self.kept = [backbone.half().requires_grad_(False)]",
            "features = self.backbone(inputs)": "features = self.kept[0](inputs)",
            EVAL: "self.kept[0].eval()",
        },
    ),
    Mistake(
        "backbone trains",
        "after `train()` the backbone is in training mode, too. In `train`, call "
        "`self.backbone.eval()` after `super().train(mode)`",
        edits={EVAL: "pass"},
        violates="after each `train` and `eval`",
    ),
    Mistake(
        "some layers train",
        "only part of the backbone is in eval mode. `self.backbone.eval()` reaches all of it, "
        "however nested",
        edits={EVAL: "self.backbone[1].eval()"},
        violates="all of it in eval mode",
    ),
    Mistake(
        "trains at first",
        "a new model's backbone is in training mode. Call `self.train()` or `backbone.eval()` in "
        "`__init__`",
        edits={"self.train()": "pass"},
        violates="from the start",
    ),
    Mistake(
        "head never trains",
        "after `model.train()` the head is in eval mode. Only the backbone should stay there",
        edits={"super().train(mode)": "super().train(False)"},
        violates="the head follows `train` and `eval`",
    ),
    Mistake(
        "head never in eval mode",
        "after `model.eval()`, which is `train(False)`, the head is in training mode. Call "
        "`super().train(mode)`",
        edits={"super().train(mode)": "super().train()"},
    ),
    Mistake(
        "its own mode stays",
        "`train` and `eval` do not change `training` of your model itself. Call "
        "`super().train(mode)` first, then `self.backbone.eval()`",
        edits={"super().train(mode)": "self.head.train(mode)"},
    ),
    Mistake(
        "train returns None",
        "`train()` has to return the model, as in every module: `return self`",
        edits={"return self": "pass"},
    ),
    Mistake(
        "all parameters",
        "`trainable()` returns the backbone's parameters as well. Return only "
        "`self.head.parameters()`",
        edits={TRAINABLE: "return self.parameters()"},
        violates="returns the head's parameters",
    ),
    Mistake(
        "last layer only",
        "`trainable()` returns only some of the head's parameters. Return `self.head.parameters()`",
        edits={TRAINABLE: "return self.head[-1].parameters()"},
    ),
    Mistake(
        "a generator that is used up",
        "the second call of `trainable()` returns no parameters. A generator such as "
        "`head.parameters()` or `filter(…)` is used up after one pass, so make one in each call, "
        "or keep a list",
        edits={HEAD: f"{HEAD}\nself.kept = head.parameters()", TRAINABLE: "return self.kept"},
    ),
    Mistake(
        "all frozen",
        "the head is frozen, too. Call `requires_grad_(False)` on the backbone alone",
        edits={HEAD: f"{HEAD}\nself.requires_grad_(False)"},
        violates="float32 head is trained",
    ),
    Mistake(
        "backbone in fp32",
        "the backbone is in float32. A frozen one works as well in fp16, in half the memory: "
        "`backbone.half()`",
        edits={HALF: HALF.replace(".half()", "")},
        violates="all its matrices in fp16",
    ),
    Mistake(
        "not frozen",
        "the backbone's parameters require gradients. Call `backbone.requires_grad_(False)`",
        edits={HALF: HALF.replace(".requires_grad_(False)", "")},
        violates="`requires_grad` False",
    ),
    Mistake(
        "no_grad around all",
        "the output has no graph, so the head cannot be trained. Only the backbone may run under "
        "`no_grad`",
        edits={RETURN: f"with torch.no_grad():\n    {RETURN}"},
    ),
    Mistake(
        "no region of its own",
        "outside of autocast, the fp16 backbone gets float32 inputs. Run it in an fp16 region",
        edits={
            REGION: "with torch.no_grad():",
            RETURN: "return self.head(features)",
        },
        violates="without an fp16 region",
    ),
]

frozen_layers = Exercise(
    card,
    FineTuned,
    cases,
    mistakes,
    tolerance=1e-2,
    messages={
        "the dtype of the head's parameters": "{case}, the head's parameters are in {got}, and the "
        "scaler refuses to unscale fp16 gradients. Keep the head in float32 and call `.half()` on "
        "the backbone alone",
        "the dtype of the backbone's matrices": "{case}, the backbone's matrices are in {got}. "
        "Call `backbone.half()` in `__init__`, and never `backbone.float()`, which casts the "
        "weights themselves and not a copy",
    },
)
