"""Exercise 5 of chapter 05: clip the norm of the true gradients, under a scaler."""

import math
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, read_number
from amp_course.scaler.exercises._shared import gradients, watch_steps
from amp_course.watching.scene import flat

card = Card(
    chapter="scaler",
    name="clip_scaled",
    number=5,
    title="Clip under a scaler",
    difficulty=2,
    importance=5,
    minutes=8,
    lines=6,
    task="Write `clip_scaled(loss, parameters, optimizer, scaler, max_norm)`: backward, clip the "
    "norm of all gradients to `max_norm`, step and update. `parameters` may be a generator, as "
    "`model.parameters()` is. Scaled gradients of earlier micro-batches may be there, and they "
    "count. Clear nothing: that is up to the caller. A step that overflows must be skipped and "
    "lower the scale. Return the norm of the true gradients before clipping, as you would log it; "
    "after an overflow, no finite number.",
    hints=(
        "After `backward()` the gradients carry the scale. Which norm would you clip then?",
        "`scaler.unscale_(optimizer)` takes the scale out, and the scaler remembers that it did.",
        "Scale, `backward()`, `scaler.unscale_(optimizer)`, `norm = "
        "torch.nn.utils.clip_grad_norm_(parameters, max_norm)`, step.",
    ),
    why="If you clip scaled gradients, every step becomes tiny: the loop runs, the loss hardly "
    "falls, and nothing complains.",
    alternative="clip the scaled gradients to `max_norm * scaler.get_scale()`, and return that "
    "norm divided by the scale.",
)


def right(loss: Any, parameters: Any, optimizer: Any, scaler: Any, max_norm: float) -> Any:
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


LEFT = "the gradients after the call"
OVERFLOW = 2.0**124  # finite, and so is the loss; its gradient is inf once it is scaled
STEPS: tuple[tuple[Any, float], ...] = (  # the norm over the limit, or what is bad; the limit
    (5.0, 2.0),
    (0.4, 4.0),
    ("inf", 2.0),
    (3.0, 0.5),
    (0.6, 4.0),
    (OVERFLOW, 2.0),
    (1.5, 0.5),
    (500.0, 4.0),
    (2.0, 1.0),
    ("NaN", 2.0),
)


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Norms above and below the limit, inf, an overflow, a growth of the scale, and NaN."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    parameters = [nn.Parameter(torch.randn(n, generator=generator)) for n in ((3, 4), (2,), (5,))]
    optimizer = torch.optim.SGD([{"params": parameters[:2]}, {"params": parameters[2:]}], lr=0.1)
    used = watch_steps(optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    scaler.scale(torch.ones(()))  # a scaler makes its scale when it is first used
    for number, (size, limit) in enumerate(STEPS, 1):
        case = f"at step {number}, with "
        true = [torch.randn(p.shape, generator=generator) for p in parameters]
        if bad := size in ("inf", "NaN", OVERFLOW):
            true[2][3] = float(size)
            case += f"{'an overflow' if size == OVERFLOW else size} in the gradients"
        else:
            true = [g * (limit * size / flat(true).norm()) for g in true]
            case += f"gradients of norm {limit * size:g} and a limit of {limit:g}"
        optimizer.zero_grad()
        used.clear()
        given: Any = parameters
        if number % 2 == 0:
            case += ", some of them from an earlier micro-batch"
            for place, p in enumerate(parameters):
                earlier = torch.randn(p.shape, generator=generator) * limit / 4
                p.grad = earlier * scaler.get_scale()
                true[place] = true[place] - earlier
            given = (p for p in parameters)
        loss = torch.stack([(p * g).sum() for p, g in zip(parameters, true, strict=True)]).sum()
        got = call_answer(answer, case, loss, given, optimizer, scaler, limit)
        # After an overflow there may be nothing to log
        norm = math.nan if bad and got is None else read_number(got, case)
        outputs = {
            "the number of optimizer steps": len(used),
            "the gradient at the step": list(used),
            "the weights after the step": flat(parameters),
            "the loss scale after the step": scaler.get_scale(),
            LEFT: "there" if gradients(optimizer).any() else "cleared",
            "the norm that you return after an overflow" if bad else "the norm that you return": (
                "inf or NaN" if bad and not math.isfinite(norm) else float(f"{norm:.6g}")
            ),
        }
        finite = [bool(one.isfinite().all()) for one in used]
        evidence = {"finite": finite, "new scale": scaler.get_scale()}
        yield Case(case, outputs, evidence=evidence)


BACKWARD = "scaler.scale(loss).backward()"
UNSCALE = "scaler.unscale_(optimizer)"
CLIP = "norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)"
STEP = "scaler.step(optimizer)"
UPDATE = "scaler.update()"
LIST = "parameters = list(parameters)"
ONLY_NORM = "norm = torch.cat([p.grad.flatten() for p in parameters]).norm()"
NORM = f"{LIST}\n{ONLY_NORM}"
EACH = "for p in parameters:\n    "
GROUPS = "for group in optimizer.param_groups:\n    "

mistakes = [
    Mistake(
        *families.CLIPS_BEFORE_UNSCALING,
        edits={UNSCALE: "pass"},
        violates="clip the norm of all gradients to `max_norm`",
    ),
    Mistake(
        "clears what was there",
        "the gradients of an earlier micro-batch are gone. Leave `optimizer.zero_grad()` to the "
        "caller",
        edits={BACKWARD: f"optimizer.zero_grad()\n{BACKWARD}"},
        violates="Clear nothing",
    ),
    Mistake(
        "no scaler",
        "the scaler took no part, so earlier gradients kept their scale. Scale, unscale, clip, "
        "step, update",
        edits={
            BACKWARD: "loss.backward()",
            UNSCALE: "pass",
            STEP: "optimizer.step()",
            UPDATE: "pass",
        },
    ),
    Mistake(
        "unscales before backward",
        "there were no gradients to unscale. Call `backward()` before `scaler.unscale_`, and "
        "clear none in between",
        edits={BACKWARD: f"{UNSCALE}\n{BACKWARD}", UNSCALE: "pass"},
    ),
    Mistake(
        *families.NO_UPDATE,
        edits={UPDATE: "pass"},
    ),
    Mistake(
        *families.UPDATES_BEFORE_THE_STEP,
        edits={STEP: UPDATE, UPDATE: STEP},
    ),
    Mistake(
        *families.STEPS_BY_HAND,
        edits={STEP: "optimizer.step()"},
        violates="A step that overflows must be skipped",
    ),
    Mistake(
        "cleans inf away",
        "inf and NaN were replaced by numbers, so the scaler could not find them and skip the "
        "step. Leave them in",
        edits={UNSCALE: f"{LIST}\n{EACH}p.grad.nan_to_num_()\n{UNSCALE}"},
    ),
    Mistake(
        *families.UNSCALES_BY_HAND,
        edits={UNSCALE: f"{LIST}\n{EACH}p.grad /= scaler.get_scale()"},
    ),
    Mistake(
        *families.LOSS_NOT_SCALED,
        edits={BACKWARD: "loss.backward()"},
    ),
    Mistake(
        "no update when skipped",
        "`scaler.update()` does not run after an overflow, so the scale does not fall. Call it "
        "every time",
        edits={STEP: f"if not norm.isfinite():\n    return norm\n{STEP}"},
    ),
    Mistake(
        *families.NO_CLIPPING,
        edits={CLIP: NORM},
    ),
    Mistake(
        "reads a generator twice",
        "nothing was clipped where `parameters` is a generator, as `model.parameters()` is: it "
        "can be read only once. Begin with `parameters = list(parameters)`, or leave norm and "
        "clipping to `clip_grad_norm_`",
        edits={CLIP: f"{ONLY_NORM}\n{EACH}p.grad *= min(1.0, max_norm / float(norm))"},
        violates="may be a generator",
    ),
    Mistake(
        *families.ALWAYS_TO_MAX_NORM,
        edits={CLIP: f"{NORM}\n{EACH}p.grad *= max_norm / norm"},
    ),
    Mistake(
        *families.CLIPS_VALUES,
        edits={CLIP: f"{NORM}\ntorch.nn.utils.clip_grad_value_(parameters, max_norm)"},
    ),
    Mistake(
        *families.CLIPS_EACH_PARAMETER,
        edits={CLIP: f"{NORM}\n{EACH}torch.nn.utils.clip_grad_norm_([p], max_norm)"},
        violates="of all gradients",
    ),
    Mistake(
        *families.CLIPS_IN_PARTS,
        edits={CLIP: f"{NORM}\n{GROUPS}torch.nn.utils.clip_grad_norm_(group['params'], max_norm)"},
    ),
    *[
        Mistake(
            f"clips the first {part} only",
            f"only the first {part} was clipped, by its own norm. Pass all parameters to "
            "`clip_grad_norm_`, in one call",
            edits={CLIP: f"{LIST}\n{CLIP.replace('parameters', some)}"},
        )
        for part, some in {
            "parameter": "parameters[:1]",
            "parameter group": "optimizer.param_groups[0]['params']",
        }.items()
    ],
    Mistake(
        *families.SUM_OF_NORMS,
        edits={
            CLIP: f"{LIST}\nnorm = sum(p.grad.norm() for p in parameters)\n"
            f"{EACH}p.grad *= min(1.0, max_norm / float(norm))"
        },
    ),
    Mistake(
        "returns the norm of the scaled gradients",
        "the norm that you return carries the scale. Return that of the true gradients, before "
        "clipping",
        edits={CLIP: f"scale = scaler.get_scale()\n{CLIP}\nnorm *= scale"},
    ),
    Mistake(
        "the scale after the update",
        "the norm is divided by the scale that `update()` left. Read the scale before",
        edits={
            STEP: f"norm *= scaler.get_scale()\n{STEP}",
            "return norm": "return norm / scaler.get_scale()",
        },
    ),
    Mistake(
        *families.RETURNS_THE_NORM_AFTER_CLIPPING,
        edits={CLIP: f"{LIST}\n{CLIP}", "return norm": f"{NORM}\nreturn norm"},
        violates="before clipping",
    ),
    Mistake(
        "no step",
        "no step was taken. Call `scaler.step(optimizer)` before the update",
        edits={STEP: "pass"},
    ),
    Mistake(
        "raises on an overflow",
        "an overflow stops the training. Leave `error_if_nonfinite` out, so that the scaler can "
        "skip that step",
        edits={CLIP: CLIP.replace("max_norm)", "max_norm, error_if_nonfinite=True)")},
    ),
]

clip_scaled = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-3,
    messages={
        LEFT: "{case}, the gradients are gone after the call. Clear nothing: the caller may want "
        "to look at them"
    },
)
