"""Exercise 9 of chapter 07: one norm over the gradients of two optimizers."""

import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, families, read_number
from amp_course.patterns.exercises._shared import both_steps, observe
from amp_course.watching.scene import flat

card = Card(
    chapter="patterns",
    name="clip_both",
    number=9,
    title="One norm over two optimizers",
    difficulty=4,
    importance=3,
    minutes=10,
    lines=10,
    task="Write `clip_both(optimizers, scaler, max_norm)`, which is called after `backward()`: "
    "clip all gradients of both optimizers by their common norm, step, update, and return the norm "
    "before clipping, in float32 or float64. If it is not finite, neither optimizer may step, even "
    "where each gradient is finite and only their norm overflows. A parameter may have no "
    "gradient. Leave clearing to the caller.",
    hints=(
        "The scaler checks gradients in `unscale_`. What does clipping by a norm of NaN do to "
        "clean gradients, and who checks them after that?",
        "Unscale both, then call `clip_grad_norm_` once with the parameters of both. It returns "
        "the norm before clipping.",
        "If `norm.isfinite()`, step both. Call `scaler.update()` in any case, as it lowers the "
        "scale after inf or NaN, and return the norm.",
    ),
    why="The scaler does not check what changes gradients after `unscale_`, so a NaN that clipping "
    "makes reaches the weights.",
    alternative="`torch.nn.utils.get_total_norm` and `clip_grads_with_norm_`, the two halves of "
    "`clip_grad_norm_`: take the norm, and clip and step only if it is finite.",
)


def right(optimizers: Any, scaler: Any, max_norm: float) -> Any:
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    norm = clip_grad_norm_(parameters, max_norm)
    if norm.isfinite():
        for one in optimizers:
            scaler.step(one)
    scaler.update()
    return norm


# the case; `max_norm` as a share of the norm; a factor for one gradient, of which optimizer
STEPS = (
    ("where the norm exceeds `max_norm`", 0.4, 1.0, 0),
    ("where the norm is below `max_norm`", 1.7, 1.0, 0),
    ("where the second optimizer's gradients hold a NaN", 0.5, math.nan, 1),
    ("after the NaN", 0.1, 1.0, 0),
    ("where the first optimizer's gradients hold an inf", 0.5, math.inf, 0),
    ("with two other optimizers and another scaler", 0.5, 1.0, 0),
)
LARGE = 1e20  # its square is beyond float32
STEPPED = "which optimizers step on a norm that is not finite"


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Step on gradients of a known norm, at last on large ones; one parameter has no gradient."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for number, (what, share, factor, place) in enumerate(STEPS, 1):
        if number == 1 or "other" in what:
            shapes = ((3, 4), (4,), (2, 5))
            weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
            everything = [*weights, nn.Parameter(torch.ones(3))]  # the last has no gradient
            groups: list[Any] = [{"params": [weight]} for weight in everything]
            make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
            optimizers: list[Any] = [make(groups[:2]), make(groups[2:])]
            scale = 2.0 ** (7 + number)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
        case, scale = f"at step {number}, {what}", float(scaler.scale(torch.ones(())))
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator) * scale
        norm = float(flat(weight.grad for weight in weights).norm()) / scale
        weights[2 * place].grad[0, 0] *= factor  # type: ignore[index]
        with observe([], optimizers, scaler) as observer:
            got = call_answer(answer, case, optimizers, scaler, norm * share)
        value, steps = read_number(got, case), both_steps(observer.update)
        finite = math.isfinite(factor)  # clipping by an inf norm gives zeros, too
        cleared = sum(w.grad is None or (finite and not w.grad.any()) for w in weights)
        outputs = steps | {
            "the weights after the step": flat(everything),
            "the loss scale after the step": scaler.get_scale(),
            "the number of gradients that you cleared": cleared,
            "the norm that you return"
            if finite
            else "the norm that you return after an overflow": value
            if math.isfinite(value)
            else "not finite",
        }
        yield Case(case, outputs, evidence=steps)
    case = f"where gradients up to {LARGE:g} are finite, but their norm in float32 is not"
    for weight in weights:
        weight.grad = scaler.scale(torch.full_like(weight, LARGE))
    with observe([], optimizers, scaler) as observer:
        value = read_number(call_answer(answer, case, optimizers, scaler, 1.0), case)
    _, first, second = both_steps(observer.update).values()
    used = [*first, *second]
    kept = not used or (  # a norm in float64 is finite, and may be used
        len(used) == 2
        and math.isfinite(value)
        and math.isclose(float(flat(used).double().norm()), 1.0, rel_tol=1e-3)
    )
    yield Case(case, {STEPPED: "none, or both, clipped" if kept else "some"})


UNSCALE = "scaler.unscale_(optimizer)"
GROUPS = "groups = [group for optimizer in optimizers for group in optimizer.param_groups]"
PARAMETERS = 'parameters = [p for group in groups for p in group["params"] if p.grad is not None]'
CLIP, IF = "norm = clip_grad_norm_(parameters, max_norm)", "if norm.isfinite():"
STEP, UPDATE, RETURN = "scaler.step(one)", "scaler.update()", "return norm"
OWN_NORMS = """norms = [
    clip_grad_norm_([p for g in one.param_groups for p in g["params"]], max_norm)
    for one in optimizers
]
norm = torch.stack(norms).norm()"""

mistakes = [
    Mistake(
        "tests the gradients, not the norm",
        "an optimizer stepped where each gradient is finite and only their norm is inf. "
        "Clipping makes such gradients 0, and momentum still moves the weights, so step only if "
        "the norm is finite",
        edits={
            CLIP: f"good = all(p.grad.isfinite().all() for p in parameters)\n{CLIP}",
            IF: "if good:",
        },
        violates="even where each gradient is finite and only their norm overflows",
    ),
    Mistake(
        "poisons the clean one",
        "an optimizer stepped although the norm was not finite. Clipping by it makes clean "
        "gradients NaN or 0, so step only if it is finite",
        edits={IF: "if True:"},
        violates="If it is not finite, neither optimizer may step",
    ),
    Mistake(
        "misses inf",
        "with a norm of inf, though not with NaN, an optimizer stepped. Step only if "
        "`norm.isfinite()`",
        edits={IF: "if not norm.isnan():"},
    ),
    Mistake(
        "steps by hand",
        "both optimizers stepped although the norm was not finite, even the one with the "
        "NaN or inf. Step only if it is finite",
        edits={IF: "if True:", STEP: "one.step()"},
    ),
    Mistake(
        "unscales the first only",
        "the second optimizer's gradients were still scaled when you took the norm. Call "
        "`scaler.unscale_` for both optimizers first",
        edits={UNSCALE: "if optimizer is optimizers[0]:\n    scaler.unscale_(optimizer)"},
    ),
    Mistake(
        "each on its own",
        "each optimizer was clipped by its own norm, and stepped without the other. Take one norm, "
        "and step both or none",
        edits={CLIP: OWN_NORMS, IF: "if True:"},
    ),
    Mistake(
        "each clipped apart",
        "each optimizer was clipped by its own norm. Take one norm over all gradients",
        edits={CLIP: OWN_NORMS},
        violates="by their common norm",
    ),
    Mistake(
        "clips the first only",
        "the first optimizer's gradients were clipped by their own norm, and the second's not at "
        "all. Clip the parameters of both in one call (a generator is used up after one pass)",
        edits={GROUPS: "groups = optimizers[0].param_groups"},
        violates="all gradients of both optimizers",
    ),
    Mistake(
        "clips the first only, and always steps",
        "only the first optimizer's gradients were clipped, by their own norm, and the optimizers "
        "stepped whatever that is. Clip the parameters of both in one call, and step if it is "
        "finite",
        edits={GROUPS: "groups = optimizers[0].param_groups", IF: "if True:"},
    ),
    Mistake(
        "clips one group only",
        "only the first group of the first optimizer was clipped, by its own norm. Clip the "
        "parameters of all groups of both optimizers in one call",
        edits={GROUPS: "groups = optimizers[0].param_groups[:1]"},
    ),
    Mistake(
        "first group only",
        "you clipped only `param_groups[0]` of each optimizer. Loop over all groups",
        edits={GROUPS: "groups = [optimizer.param_groups[0] for optimizer in optimizers]"},
    ),
    Mistake(
        *families.ZEROS_FOR_NONE,
        edits={PARAMETERS: f"{PARAMETERS[:-1]} or setattr(p, 'grad', p * 0) is None]"},
        violates="A parameter may have no gradient",
    ),
    *(
        Mistake(
            name,
            "the gradients were still scaled when you clipped them. Call `scaler.unscale_` for "
            "both optimizers first",
            edits={UNSCALE: "pass", CLIP: f"{CLIP[:-1]}{then}"},
        )
        for name, then in (
            ("never unscales", ")"),
            ("unscales after clipping", ")\n[scaler.unscale_(one) for one in optimizers]"),
            ("divides the norm", " * scaler.get_scale()) / scaler.get_scale()"),
        )
    ),
    Mistake(
        "no clipping",
        "the gradients were not clipped. Call `clip_grad_norm_` before the steps, with a list of "
        "parameters (a generator is used up after one pass)",
        edits={CLIP: "norm = clip_grad_norm_(parameters, math.inf)"},
        violates="clip all gradients",
    ),
    Mistake(
        *families.SUM_OF_NORMS,
        edits={
            CLIP: "norm = sum(p.grad.norm() for p in parameters)\n"
            "[p.grad.mul_(min(1.0, max_norm / float(norm))) for p in parameters]"
        },
    ),
    Mistake(
        *families.ALWAYS_TO_MAX_NORM,
        edits={
            CLIP: "norm = clip_grad_norm_(parameters, math.inf)\n"
            "[p.grad.mul_(max_norm / norm) for p in parameters]"
        },
    ),
    Mistake(
        "raises on an overflow",
        "`error_if_nonfinite=True` raises at every overflow. Test the norm instead, and leave out "
        "both steps",
        edits={CLIP: f"{CLIP[:-1]}, error_if_nonfinite=True)"},
    ),
    Mistake(
        "no update when skipped",
        "`scaler.update()` is left out along with the steps, so the scale never falls. Call it in "
        "any case",
        edits={IF: f"if not norm.isfinite():\n    return norm\n{IF}"},
        violates="update",
    ),
    Mistake(
        *families.NO_UPDATE_AFTER_BOTH,
        edits={UPDATE: "pass"},
    ),
    Mistake(
        *families.AN_UPDATE_FOR_EACH,
        edits={STEP: f"{STEP}\n{UPDATE}", UPDATE: f"if not norm.isfinite():\n    {UPDATE}"},
    ),
    Mistake(
        *families.RETURNS_THE_NORM_AFTER_CLIPPING,
        edits={RETURN: "return torch.cat([p.grad.flatten() for p in parameters]).norm()"},
        violates="return the norm before clipping",
    ),
    Mistake(
        "clears",
        "you cleared the gradients, which the caller may still need. Leave out `zero_grad()`",
        edits={UPDATE: f"{UPDATE}\n[o.zero_grad() for o in optimizers]"},
        violates="Leave clearing to the caller",
    ),
]

clip_both = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-4,
    messages={
        STEPPED: "{case}, an optimizer stepped on gradients that clipping had made 0 or left as "
        "they were. Decide by the norm that you clip by, not by the gradients alone",
    },
)
