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
from amp_course.kit.dtypes import dtype_name
from amp_course.watching.scene import flat

card = Card(
    chapter="patterns",
    name="frozen_layers",
    number=8,
    title="Half frozen",
    difficulty=3,
    importance=4,
    minutes=15,
    lines=14,
    task="Write the module `FineTuned(backbone, head)`, and check it with "
    "`exercises.frozen_layers.check(FineTuned)`: a frozen backbone, whose layers may be nested, "
    "with all its matrices in fp16 and `requires_grad` False, and a float32 head that is trained. "
    "It returns head(backbone(inputs)) with and without an fp16 region around it. All of the "
    "backbone is in eval mode from the start and stays there, while the head follows `train` and "
    "`eval`. `trainable()` returns the head's parameters.",
    hints=(
        "Which gradients does the scaler unscale, and in which dtype? What changes in a batch "
        "norm without a gradient?",
        "`backbone.half().requires_grad_(False)`. In `train`: `super().train(mode)`, "
        "`self.backbone.eval()`, `return self`.",
        "Run the backbone in a region under `no_grad`; give the head `features.float()`. Call "
        "`self.train()` in `__init__`.",
    ),
    why="Frozen weights need no gradients, no optimizer state and half the bytes; what is trained "
    "has to stay float32.",
    alternative="leave the batch norms in float32, and give each Linear layer of the backbone "
    "`x.half()`, in a pre-hook of it.",
)


PARTS = ("backbone", "head")


class Right(nn.Module):
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


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Look at modes and parameters; evaluate outside of autocast and in a region;
    make four steps as any AMP loop does.
    """
    for name in ("__init__", "forward", "train", "trainable"):
        if isinstance(answer, type) and is_blank(vars(answer).get(name)):
            raise Wrong(f"`{name}` is still to be written")
    inner = nn.Sequential(nn.Linear(20, 24), nn.BatchNorm1d(24), nn.Tanh(), nn.Dropout(0.5))
    backbone = nn.Sequential(nn.Linear(16, 20), nn.BatchNorm1d(20), nn.Dropout(0.2), inner)
    head = nn.Sequential(nn.Linear(24, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Linear(12, 5))
    for part, module in (("backbone", backbone), ("head", head)):
        for layer in module.modules():
            vars(layer)["part"] = part  # which a copy of the layer has, too
    nn.init.normal_(inner[1].running_mean)  # type: ignore[arg-type]
    inputs, targets = (
        torch.randn(4, 12, 16),
        torch.randint(0, 5, (4, 12)),
    )  # the judge has seeded torch's generator

    model = call_answer(answer, "for a backbone and a head", backbone, head)
    if not isinstance(model, nn.Module):
        raise Wrong(f"your answer makes a {type(model).__name__}, not an `nn.Module`")
    leaves = [module for module in model.modules() if not [*module.children()]]
    layers = {part: [leaf for leaf in leaves if vars(leaf).get("part") == part] for part in PARTS}
    yield Case(
        "",
        {
            f"the number of the {part}'s layers in `model.modules()`": len(layers[part])
            for part in PARTS
        },
    )

    if not callable(method := getattr(model, "trainable", None)):
        raise Wrong(
            f"`model.trainable` is a {type(method).__name__}, not a method: write `def "
            f"trainable(self): …`"
        )
    given = _trainable(model, "at `trainable()`")
    if others := [type(one).__name__ for one in given if not isinstance(one, nn.Parameter)]:
        kind = "None" if given == [None] else f"a {others[0]}"
        raise Wrong(f"`trainable()` gives the optimizer {kind} where a parameter belongs")
    trained = [
        p for p in model.parameters() if any(p is one for one in given)
    ]  # in the model's order
    frozen = [p for p in model.parameters() if all(p is not one for one in given)]

    def state() -> dict[str, Any]:
        dtypes = [
            " and ".join(sorted({dtype_name(p.dtype) for p in part if p.dim() > 1}))
            for part in (given, frozen)
        ]
        return {
            "the dtype of the head's parameters": dtypes[0],
            "the number of the head's parameters that require gradients": sum(
                p.requires_grad for p in given
            ),
            "the dtype of the backbone's matrices": dtypes[1],
            "the number of the backbone's parameters that require gradients": sum(
                p.requires_grad for p in frozen
            ),
        }

    own = {"the number of these that are the model's own": len(trained)}
    yield Case(
        "in a new model",
        {"the number of parameters that `trainable()` returns": len(given), **own, **state()},
    )
    again = _trainable(model, "at a second call of `trainable()`")
    yield Case(
        "at the second call of `trainable()`",
        {"the number of parameters that `trainable()` returns": len(again)},
    )
    case = "for a second backbone and head"
    other = call_answer(
        answer,
        case,
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)),
    )
    yield Case(
        case, {"the number of parameters that `trainable()` returns": len(_trainable(other, case))}
    )
    norms = {part: [m for m in layers[part] if isinstance(m, nn.BatchNorm1d)] for part in PARTS}
    first = modes(layers["backbone"])
    for mode in (True, False):
        case = f"after `model.train({mode})`"
        returned = call_answer(model.train, case, mode)
        kind = "None" if returned is None else f"a {type(returned).__name__}"
        yield Case(
            case,
            {
                "the return value of `train`": "the model itself" if returned is model else kind,
                "the mode of the backbone's layers": modes(layers["backbone"]),
                "the mode of the head's layers": modes(layers["head"]),
                **state(),
            },
        )
    yield Case("before the first call of `train`", {"the mode of the new backbone's layers": first})

    for enabled, case in (
        (False, "with no region around your model"),
        (True, "in an fp16 region around your model"),
    ):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            got = call_answer(model, case, inputs[0])
        output = read_tensor(got, case, "logits", (12, 5), "`model(inputs)` returned").float()
        yield Case(f"after a pass {case}", {"the output": output, **state()})

    model.train()
    before = flat(trained)
    optimizer, scaler = (
        torch.optim.SGD(given, lr=0.2),
        torch.amp.GradScaler("cpu", init_scale=2.0**8),
    )
    for batch, target, enabled in zip(inputs, targets, (True, False, True, True), strict=True):
        case = (
            f"in training, {'in an fp16 region' if enabled else 'with no region'} around your model"
        )
        with torch.autocast("cpu", dtype=torch.float16, enabled=enabled):
            loss = cross_entropy(call_answer(model, case, batch), target)
        if loss.requires_grad:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    yield Case(
        "after four steps of training",
        {
            "the output's `requires_grad`": loss.requires_grad,
            "the change of the head's weights": flat(trained) - before,
            **{
                f"the {part}'s running means": flat(norm.running_mean for norm in norms[part])
                for part in PARTS
            },
        },
    )


def _trainable(model: Any, case: str) -> list[Any]:
    got = call_answer(model.trainable, case)
    return list(got) if isinstance(got, Iterable) and not isinstance(got, nn.Module) else [got]


def modes(layers: list[nn.Module]) -> str:
    found = {layer.training for layer in layers}
    return (
        "eval for some and training for others"
        if len(found) > 1
        else "training"
        if True in found
        else "eval"
    )


HALF, HEAD = "self.backbone = backbone.half().requires_grad_(False)", "self.head = head"
REGION = "with torch.no_grad(), torch.autocast(inputs.device.type, dtype=torch.float16):"
FEATURES, RETURN = "features = self.backbone(inputs)", "return self.head(features.float())"
MODE, EVAL, TRAINABLE = (
    "super().train(mode)",
    "self.backbone.eval()",
    "return self.head.parameters()",
)

mistakes = [
    Mistake(
        "hidden in a list",
        "the backbone is not among `model.modules()`, so `.to(device)` and `state_dict` miss it: "
        "assign it, `self.backbone = …`, for a list or a dict hides it",
        edits={
            HALF: "self.kept = [backbone.half().requires_grad_(False)]",
            FEATURES: "features = self.kept[0](inputs)",
            EVAL: "self.kept[0].eval()",
        },
    ),
    Mistake(
        "backbone trains",
        "the backbone's layers train, too: in `train`, call `self.backbone.eval()` after "
        "`super().train(mode)`",
        edits={EVAL: "pass"},
        violates="stays there",
    ),
    Mistake(
        "some layers train",
        "only a part of the backbone is in eval mode: `self.backbone.eval()` reaches all of it, "
        "however nested",
        edits={EVAL: "self.backbone[1].eval()"},
        violates="All of the backbone",
    ),
    Mistake(
        "trains at first",
        "a new model's backbone is in training mode: call `self.train()`, or `backbone.eval()`, "
        "in `__init__`",
        edits={"self.train()": "pass"},
        violates="from the start",
    ),
    Mistake(
        "head never trains",
        "after `model.train()` the head is in eval mode, too: only the backbone stays there",
        edits={MODE: "super().train(False)"},
        violates="the head follows `train` and `eval`",
    ),
    Mistake(
        "head never in eval mode",
        "after `model.eval()`, or `train(False)`, the head is in training mode: call "
        "`super().train(mode)`",
        edits={MODE: "super().train()"},
    ),
    Mistake(
        "train returns None",
        "`train()` has to return the model, as every module's does: `return self`",
        edits={"return self": "pass"},
    ),
    Mistake(
        "all parameters",
        "`trainable()` returns the backbone's parameters as well: return only "
        "`self.head.parameters()`",
        edits={TRAINABLE: "return self.parameters()"},
        violates="returns the head's parameters",
    ),
    Mistake(
        "last layer only",
        "`trainable()` returns only a part of the head's parameters: `self.head.parameters()`",
        edits={TRAINABLE: "return self.head[-1].parameters()"},
    ),
    Mistake(
        "a generator that is used up",
        "`trainable()` returns the parameters once, and then nothing: a generator such as "
        "`head.parameters()` or `filter(…)` is used up after one pass. Make a new one in each "
        "call, or keep a list",
        edits={HEAD: f"{HEAD}\nself.kept = head.parameters()", TRAINABLE: "return self.kept"},
    ),
    Mistake(
        "all frozen",
        "the head is frozen, too: call `requires_grad_(False)` on the backbone alone",
        edits={HEAD: f"{HEAD}\nself.requires_grad_(False)"},
        violates="float32 head that is trained",
    ),
    Mistake(
        "backbone in fp32",
        "the backbone is in float32. Frozen, it works as well in fp16, in half the memory: "
        "`backbone.half()`",
        edits={HALF: HALF.replace(".half()", "")},
        violates="all its matrices in fp16",
    ),
    Mistake(
        "not frozen",
        "the backbone's parameters need no gradients, but require them: "
        "`backbone.requires_grad_(False)`",
        edits={HALF: HALF.replace(".requires_grad_(False)", "")},
        violates="`requires_grad` False",
    ),
    Mistake(
        "no_grad around all",
        "the output has no graph, so the head cannot be trained: only the backbone's pass may be "
        "under `no_grad`",
        edits={RETURN: f"with torch.no_grad():\n    {RETURN}"},
    ),
    Mistake(
        "no region of its own",
        "outside of autocast, the fp16 backbone meets float32 inputs: open an fp16 region around "
        "its pass",
        edits={REGION: "with torch.no_grad():", RETURN: "return self.head(features)"},
        violates="without an fp16 region",
    ),
]

frozen_layers = Exercise(
    card,
    Right,
    cases,
    mistakes,
    tolerance=1e-2,
    messages={
        "the dtype of the head's parameters": "{case}, the head's parameters are in {got}, and "
        "the scaler refuses to unscale gradients in fp16: keep the head in float32, and call "
        "`.half()` on the backbone alone",
        "the dtype of the backbone's matrices": "{case}, backbone matrices are in {got}: call "
        "`backbone.half()` in `__init__`, and never `backbone.float()`, which casts the weights "
        "themselves and not only a copy of them",
    },
)
