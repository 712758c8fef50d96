"""Exercise 10 of chapter 07: an average of the weights that waits for the optimizer."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, read_integer
from amp_course.watching.scene import dtype_names, flat

card = Card(
    chapter="patterns",
    name="ema_step",
    number=10,
    title="An average that waits",
    difficulty=3,
    importance=3,
    minutes=10,
    lines=13,
    task="Write `ema_step(model, average, optimizer, scaler, taken)`, called after `backward()`: "
    "make the optimizer step and update the scaler. Then move `average`, a frozen fp32 copy of "
    "the model, but only if the optimizer really stepped. Each weight of it becomes decay times "
    "itself plus (1 - decay) times the model's new weight, and each buffer a copy of the model's. "
    "`taken` is the number of steps taken before this call, and decay is "
    "min(0.99, (1 + taken) / (10 + taken)). Return the number of steps taken so far. The scaler "
    "may be off; it then skips nothing.",
    hints=(
        "The scaler does not report that it skipped. What does `update()` do after a skip, and "
        "only then? An average also has a count, which makes its decay grow.",
        "Keep `scaler.get_scale()` from before the update. If it is smaller afterwards, return "
        "`taken` and change nothing.",
        "Under `torch.no_grad()`: `mine.lerp_(new, 1 - decay)` for each pair of parameters, and "
        "`mine.copy_(new)` for each pair of buffers. Return `taken + 1`.",
    ),
    why="Each skipped step would move the average towards weights that have not changed, and end "
    "its warm-up early.",
    alternative="`optimizer.register_step_post_hook`: the hook runs only if the optimizer stepped, "
    "so the average can move in it. (Not with `fused=True`, where it runs in any case.)",
)


def right(model: Any, average: Any, optimizer: Any, scaler: Any, taken: int) -> int:
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() < before:  # a scale that fell means a skip
        return taken
    decay = min(0.99, (1 + taken) / (10 + taken))
    with torch.no_grad():
        for mine, new in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(new, 1 - decay)
        for mine, new in zip(average.buffers(), model.buffers(), strict=True):
            mine.copy_(new)
    return taken + 1


INF, NAN = float("inf"), float("nan")
STEPS = (  # a factor of one number in the gradients, or 0 for all of them; the steps taken before
    ("finite gradients", 1.0, 0),
    ("inf in a gradient", INF, 1),
    ("finite gradients", 1.0, 1),
    ("finite gradients, after which the scale grows", 1.0, 2),
    ("NaN in a gradient", NAN, 3),
    ("finite gradients", 1.0, 2000),
    ("inf in the last gradient", INF, 5),
    ("gradients of 0", 0.0, 12),
    ("finite gradients and a scaler that is off", 1.0, 31),
)
COUNT = "1.num_batches_tracked"
DTYPE, GRAPH = "the dtype of the average", "`requires_grad` of the average"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Take steps with good and bad gradients; the scale grows after every second good one."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    parameters, used = [*model.parameters()], list[Tensor]()
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    optimizer.register_step_pre_hook(lambda *_: used.append(flat(p.grad for p in parameters)))
    scaler = torch.amp.GradScaler("cpu", 2.0**10, 4.0, backoff_factor=0.75, growth_interval=2)
    for number, (words, factor, taken) in enumerate(STEPS, 1):
        case = f"at step {number}, with {words}"
        if "off" in words:
            scaler = torch.amp.GradScaler("cpu", enabled=False)
        average = copy.deepcopy(model).requires_grad_(False)
        for tensor in [*parameters, *average.parameters(), *model.buffers(), *average.buffers()]:
            values = torch.randn(tensor.shape, generator=generator)
            tensor.data = values if tensor.is_floating_point() else tensor + number
        for parameter in parameters:
            grad = torch.randn(parameter.shape, generator=generator) * (factor != 0.0)
            parameter.grad = scaler.scale(grad)
        parameters[number % 4].grad.view(-1)[1] *= factor  # type: ignore[union-attr]
        used.clear()
        got = call_answer(answer, case, model, average, optimizer, scaler, taken)
        outputs = {
            "the number of optimizer steps": len(used),
            "the gradient at the step": [*used],
            "the weights of the model after the call": flat(parameters),
            "the loss scale after the call": scaler.get_scale(),
            DTYPE: dtype_names(p.dtype for p in average.parameters()),
            GRAPH: any(p.requires_grad for p in average.parameters()),
            "the weights of the average": flat(average.parameters()),
            "the buffers of the average": flat(b for b in average.buffers() if b.dim()),
            "the count in a buffer of the average": int(average.get_buffer(COUNT)),
            "the number of steps that you return": read_integer(got, case),
        }
        yield Case(case, outputs)


BEFORE, STEP, UPDATE = (
    "before = scaler.get_scale()",
    "scaler.step(optimizer)",
    "scaler.update()",
)
IF, SKIPPED = "if scaler.get_scale() < before:", "return taken"
DECAY = "decay = min(0.99, (1 + taken) / (10 + taken))"
NO_GRAD, MOVE, RETURN = "with torch.no_grad():", "mine.lerp_(new, 1 - decay)", "return taken + 1"
BUFFER = "mine.copy_(new)"
GRADS = "grads = [p.grad for p in model.parameters()]"
BY_FALL = "Compare the scale before and after `update()`: only a skip makes it smaller"


def moves_first(bad: str) -> dict[str, str]:
    """Move the average before the step, unless `bad`."""
    late = "\n".join((STEP, UPDATE, "return taken"))
    return {
        BEFORE: GRADS,
        STEP: "",
        UPDATE: "",
        IF: f"if {bad}:",
        SKIPPED: late,
        RETURN: f"{STEP}\n{UPDATE}\n{RETURN}",
    }


mistakes = [
    Mistake(
        "always moves",
        f"the average also moves after a skipped step. {BY_FALL}",
        edits={IF: "if False:"},
        violates="only if the optimizer really stepped",
    ),
    Mistake(
        "counts skipped steps",
        "a skipped step is counted, so the warm-up of the decay ends early. Return `taken` "
        "unchanged after a skip",
        edits={SKIPPED: RETURN},
        violates="Return the number of steps taken so far",
    ),
    Mistake(
        "takes growth for a skip",
        "the average does not move when the scale grew, but the optimizer stepped. Only a scale "
        "that fell means a skip",
        edits={IF: IF.replace("<", "!=")},
    ),
    Mistake(
        "moves only when the scale grows",
        "the average moves only when the scale grew. After most steps the scale stays as it is, "
        "and only a scale that fell means a skip",
        edits={IF: IF.replace("<", "<=")},
    ),
    Mistake(
        "waits for a fall",
        "the average moves when the scale fell, after a skip, and not when it grew. It is the "
        "other way round",
        edits={IF: IF.replace("<", ">")},
    ),
    Mistake(
        "never moves",
        "the average never moves, although most steps are taken. Either your test for a skip is "
        "always true, or the new value only gets a name, as in `a = …`, where `a.lerp_(…)` would "
        "write it into the average",
        edits={IF: "if True:"},
    ),
    *(
        Mistake(
            f"misses {missed}",
            f"the average moves after a step that was skipped for {missed}. {BY_FALL}",
            edits={BEFORE: f"{GRADS}\nbad = any(g.{test}().any() for g in grads)", IF: "if bad:"},
        )
        for missed, test in (("NaN", "isinf"), ("inf", "isnan"))
    ),
    Mistake(
        "looks for moved weights",
        "this step left the weights as they were, because its gradients are 0, but it was taken. "
        f"{BY_FALL}",
        edits={
            BEFORE: "old = [p.detach().clone() for p in model.parameters()]",
            IF: "if all(map(torch.equal, old, model.parameters())):",
        },
    ),
    *(
        Mistake(
            name,
            "the average moves before the optimizer steps, so it uses the old weights. Move it "
            "after `scaler.step`",
            edits=moves_first(bad),
            violates="the model's new weight",
        )
        for name, bad in (
            ("moves first", "not all(g.isfinite().all() for g in grads)"),
            ("always moves, and first", "False"),
        )
    ),
    Mistake(
        "decay one step ahead",
        "the decay counts this step, too. `taken` has to be the number of steps before this one",
        edits={DECAY: f"taken += 1\n{DECAY}", RETURN: "return taken"},
        violates="the number of steps taken before this call",
    ),
    Mistake(
        "no warm-up",
        "the decay is 0.99 from the start, so the average keeps its first weights for long. Let it "
        "grow with `taken`",
        edits={DECAY: "decay = 0.99"},
    ),
    Mistake(
        "the larger decay",
        "the decay is the larger of the two numbers, and never below 0.99. Take the smaller one, "
        "with `min`",
        edits={DECAY: DECAY.replace("min", "max")},
    ),
    Mistake(
        "no limit",
        "the decay grows past 0.99, and the average becomes slower and slower. Take the smaller "
        "of the two",
        edits={DECAY: "decay = (1 + taken) / (10 + taken)"},
        violates="min(0.99,",
    ),
    Mistake(
        "shares swapped",
        "the decay is the share of the model's weights here. It is the share that the average "
        "keeps",
        edits={MOVE: "mine.lerp_(new, decay)"},
        violates="decay times itself",
    ),
    Mistake(
        "copies the weights",
        "the average is a copy of the model's weights. It has to keep `decay` of its own value, as "
        "in `a.lerp_(new, 1 - decay)`",
        edits={MOVE: "mine.copy_(new)"},
    ),
    Mistake(
        "in fp16",
        "the average is in float16, where small updates are rounded away. Keep it in fp32",
        edits={BEFORE: f"average.half()\n{BEFORE}", MOVE: MOVE.replace("new", "new.half()")},
        violates="fp32 copy",
    ),
    Mistake(
        "keeps the graph",
        "each update of the average is recorded by autograd, whose graph grows with every step. "
        "Update it under `torch.no_grad()`",
        edits={NO_GRAD: "if True:"},
    ),
    Mistake(
        "leaves the buffers",
        "the buffers of the average stay as they were, so its batch norms use old statistics. "
        "Copy the model's",
        edits={BUFFER: "pass"},
        violates="each buffer a copy",
    ),
    Mistake(
        "averages the buffers",
        "the buffers are averaged, too. Copy them: they are averages already, or counts",
        edits={BUFFER: "mine.copy_(mine * decay + (1 - decay) * new)"},
    ),
    Mistake(
        *families.STEPS_WHILE_SCALED,
        edits={STEP: "optimizer.step()", UPDATE: "pass"},
    ),
]

ema_step = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages={
        DTYPE: "the average is in {got}, where small updates are rounded away. Keep it in fp32",
        GRAPH: "the average requires gradients now. Update it under `torch.no_grad()`, and leave "
        "its parameters frozen",
    },
)
