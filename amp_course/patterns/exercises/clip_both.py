"""Exercise 9 of chapter 07: one norm over the gradients of two optimizers."""

import math
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_number
from amp_course.watching.observer import Observer
from amp_course.watching.records import Training
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
    task="Write `clip_both(optimizers, scaler, max_norm)`, called after `backward()`: clip all "
    "gradients of both optimizers by their common norm, step, update, and return the norm before "
    "clipping. If it is not finite, neither optimizer may step, even where each gradient is "
    "finite and only their norm is not. A parameter may have no gradient. Leave clearing to the "
    "caller.",
    hints=(
        "The scaler checks gradients in `unscale_`. What does clipping by a NaN do to clean ones, "
        "and who checks them then?",
        "Unscale both, then call `clip_grad_norm_` once over the parameters of both. It returns "
        "the norm before clipping.",
        "`if norm.isfinite():` both steps; `scaler.update()` in any case, since it lowers the "
        "scale; `return norm`.",
    ),
    why="What changes gradients after `unscale_` escapes the scaler's check: a NaN made there "
    "reaches the weights.",
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


# the case; `max_norm` as a share of the norm; a number for one gradient, of which optimizer
TURNS = (
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
    """Make steps on gradients of a known norm, in several groups; one parameter has no gradient."""
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for number, (what, share, planted, place) in enumerate(TURNS, 1):
        if number == 1 or "other" in what:
            weights, everything, optimizers, scaler = _training(
                generator, init_scale=2.0 ** (7 + number)
            )
        case, scale = f"at step {number}, {what}", float(scaler.scale(torch.ones(())))
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=generator) * scale
        norm = float(flat(weight.grad for weight in weights).norm()) / scale
        weights[2 * place].grad[0, 0] *= planted  # type: ignore[index]
        with Observer(Training(lambda: None, [], optimizers, [scaler], [])) as observer:
            got = call_answer(answer, case, optimizers, scaler, norm * share)
        gradients = [
            [step.gradient.values.clone() for step in observer.update.steps(place)]
            for place in (0, 1)
        ]
        value = read_number(got, case)
        finite = math.isfinite(planted)  # clipping by an inf norm gives zeros, too
        cleared = sum(w.grad is None or (finite and not w.grad.any()) for w in weights)
        yield Case(
            case,
            {
                "the number of steps of the two optimizers": [len(own) for own in gradients],
                "the gradient at the first optimizer's step": gradients[0],
                "the gradient at the second optimizer's step": gradients[1],
                "the weights after the step": flat(everything),
                "the loss scale after the step": scaler.get_scale(),
                "the norm that you return": value
                if math.isfinite(value)
                else "one that is not finite",
                "the number of gradients that you cleared": cleared,
            },
            {"scale": scale},
            {"gradients": gradients},
        )
    case = (
        f"at step {len(TURNS) + 1}, where gradients up to {LARGE:g} are finite, and their norm in "
        f"float32 is not"
    )
    for weight in weights:
        weight.grad = scaler.scale(torch.full_like(weight, LARGE))
    with Observer(Training(lambda: None, [], optimizers, [scaler], [])) as observer:
        value = read_number(call_answer(answer, case, optimizers, scaler, 1.0), case)
    used = [
        step.gradient.values.clone() for place in (0, 1) for step in observer.update.steps(place)
    ]
    clipped = len(used) == 2 and math.isclose(float(flat(used).double().norm()), 1.0, rel_tol=1e-3)
    kept = not used or (
        clipped and math.isfinite(value)
    )  # a norm that is computed in float64 is finite, and may be used
    yield Case(case, {STEPPED: "none, or both, clipped" if kept else "some"})


def _training(
    generator: torch.Generator, init_scale: float
) -> tuple[list[nn.Parameter], list[nn.Parameter], list[Any], Any]:
    """Return weights with gradients, all weights, two optimizers and a scaler."""
    weights = [
        nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (4,), (2, 5))
    ]
    everything = [*weights, nn.Parameter(torch.ones(3))]  # the last has no gradient
    groups: list[Any] = [{"params": [weight]} for weight in everything]
    make = partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=2)
    return weights, everything, [make(groups[:2]), make(groups[2:])], scaler


GROUPS = "groups = [group for optimizer in optimizers for group in optimizer.param_groups]"
PARAMETERS = 'parameters = [p for group in groups for p in group["params"] if p.grad is not None]'
UNSCALE, CLIP = "scaler.unscale_(optimizer)", "norm = clip_grad_norm_(parameters, max_norm)"
IF, STEP, UPDATE, RETURN = (
    "if norm.isfinite():",
    "scaler.step(one)",
    "scaler.update()",
    "return norm",
)
UNCLIPPED = CLIP.replace("max_norm", "math.inf")
BY_HAND = "[p.grad.mul_(min(1.0, max_norm / float(norm))) for p in parameters]"
APART = (
    "[clip_grad_norm_([p for g in one.param_groups for p in g['params']], max_norm) for one in "
    "optimizers]"
)
OWN_NORMS = f"norm = torch.stack({APART}).norm()"
UNSCALES_LATE = f"{CLIP}\nfor one in optimizers:\n    scaler.unscale_(one)"
SCALED = (
    "the gradients were still scaled when you clipped them: call `scaler.unscale_` for both "
    "optimizers first"
)

mistakes = [
    Mistake(
        "tests the gradients, not the norm",
        "an optimizer stepped where each gradient is finite and only their norm is inf "
        "(`clip_grad_norm_` makes them all 0 then, and momentum still moves the weights): test "
        "the norm, and step only if it is finite",
        edits={
            CLIP: f"good = all(p.grad.isfinite().all() for p in parameters)\n{CLIP}",
            IF: "if good:",
        },
        violates="even where each gradient is finite and only their norm is not",
    ),
    Mistake(
        "poisons the clean one",
        "an optimizer stepped although the norm was not finite, with gradients that clipping by "
        "it had made NaN or 0: test the norm, and if it is not finite, leave out both steps",
        edits={IF: "if True:"},
        violates="If it is not finite, neither optimizer may step",
    ),
    Mistake(
        "tests for NaN only",
        "a norm of NaN was handled, and with a norm of inf an optimizer stepped on gradients that "
        "clipping had made 0: step only if `norm.isfinite()`",
        edits={IF: "if not norm.isnan():"},
    ),
    Mistake(
        "steps by hand",
        "both optimizers stepped although the norm was not finite, even the one whose own "
        "gradients hold the NaN or inf: test the norm, and if it is not finite, leave out both "
        "steps",
        edits={IF: "if True:", STEP: "one.step()"},
    ),
    Mistake(
        "unscales the first only",
        "the second optimizer's gradients were still scaled when you took the norm: call "
        "`scaler.unscale_` for both optimizers first",
        edits={UNSCALE: "if optimizer is optimizers[0]:\n    scaler.unscale_(optimizer)"},
    ),
    Mistake(
        "each on its own",
        "each optimizer was clipped by its own norm, and steps without the other: take one norm, "
        "step both or none",
        edits={CLIP: OWN_NORMS, IF: "if True:"},
    ),
    Mistake(
        "each clipped apart",
        "each optimizer was clipped by its own norm: take one norm over all gradients, and one "
        "factor for both",
        edits={CLIP: OWN_NORMS},
        violates="by their common norm",
    ),
    Mistake(
        "clips the first only",
        "the first optimizer's gradients were clipped by their own norm, and the second's not at "
        "all: clip all of them by the norm of all (a generator of parameters is used up after one "
        "pass)",
        edits={GROUPS: "groups = optimizers[0].param_groups"},
        violates="all gradients of both optimizers",
    ),
    Mistake(
        "first groups only",
        "you clipped only `param_groups[0]` of each optimizer: an optimizer may have more groups, "
        "so loop over all",
        edits={GROUPS: "groups = [optimizer.param_groups[0] for optimizer in optimizers]"},
    ),
    Mistake(
        "zeros for None",
        "a parameter without a gradient was moved, as by weight decay with a gradient of 0: leave "
        "None as it is",
        edits={
            PARAMETERS: PARAMETERS.replace(
                "is not None", "is not None or setattr(p, 'grad', p * 0) is None"
            )
        },
        violates="A parameter may have no gradient",
    ),
    Mistake("never unscales", SCALED, edits={UNSCALE: "pass"}),
    Mistake("unscales after clipping", SCALED, edits={UNSCALE: "pass", CLIP: UNSCALES_LATE}),
    Mistake(
        "no clipping",
        "the gradients were not clipped: call `clip_grad_norm_` before the steps, with a list of "
        "parameters (a generator is used up after one pass)",
        edits={CLIP: UNCLIPPED},
        violates="clip all gradients",
    ),
    Mistake(
        "sum of norms",
        "you added up the norms of the parameters' gradients: take the root of the sum of their "
        "squares",
        edits={CLIP: f"norm = sum(p.grad.norm() for p in parameters)\n{BY_HAND}"},
    ),
    Mistake(
        "always to max_norm",
        "gradients below the limit were made larger: clip only if the norm exceeds `max_norm`",
        edits={CLIP: f"{UNCLIPPED}\nfor p in parameters:\n    p.grad *= max_norm / norm"},
    ),
    Mistake(
        "raises on an overflow",
        "`error_if_nonfinite=True` raises at every overflow: catch it and leave out both steps, "
        "or test the norm",
        edits={CLIP: CLIP[:-1] + ", error_if_nonfinite=True)"},
    ),
    Mistake(
        "no update when skipped",
        "`scaler.update()` is left out along with the steps, so the scale never falls: call it in "
        "any case",
        edits={IF: f"if not norm.isfinite():\n    return norm\n{IF}"},
        violates="update",
    ),
    Mistake(
        "no update",
        "`scaler.update()` did not run after the steps: call it once, whether or not the "
        "optimizers stepped",
        edits={UPDATE: "pass"},
    ),
    Mistake(
        "an update for each",
        "`scaler.update()` ran between the steps, and the scaler forgot what it had unscaled: "
        "call it after both",
        edits={STEP: f"{STEP}\n{UPDATE}", UPDATE: f"if not norm.isfinite():\n    {UPDATE}"},
    ),
    Mistake(
        "norm after clipping",
        "you return the norm after clipping: return what `clip_grad_norm_` returned",
        edits={RETURN: "return torch.cat([p.grad.flatten() for p in parameters]).norm()"},
        violates="return the norm before clipping",
    ),
    Mistake(
        "clears",
        "you cleared the gradients, which the caller may still need: leave out `zero_grad()`",
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
        STEPPED: "{case}, an optimizer stepped anyway, with gradients that the clipping had made "
        "0 or left as they were: decide by the norm that you clip by, not by the gradients alone",
    },
)
