"""Exercise 4 of chapter 05: the whole scaler, step by step and to the last bit."""

import random
from collections.abc import Iterator
from typing import Any

import torch

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, families, is_blank
from amp_course.scaler.exercises._run import LEFT, Run

card = Card(
    chapter="scaler",
    name="scaler_class",
    number=4,
    title="The whole scaler",
    difficulty=4,
    importance=5,
    minutes=25,
    lines=40,
    task="For `scaler_class`, write the class `MyScaler`, made with `init_scale`, "
    "`growth_factor`, `backoff_factor` and `growth_interval`. Its methods are `scale`, "
    "`unscale_`, `step`, `update`, `get_scale`, `state_dict` and `load_state_dict`. It trains "
    "next to `torch.amp.GradScaler`, with inf and NaN, two optimizers, and a save and load, and "
    "has to equal it to the last bit. All scales are powers of two. You may leave `unscale_` "
    "blank; if you write it, it has to work.",
    hints=(
        "What does the scaler have to remember for itself, and what for each optimizer until "
        "`update`? What goes into a file?",
        "A dict `self._found = {}` from `id(optimizer)` to what was found. An optimizer with an "
        "entry is already unscaled; `step` looks there first, `update` asks "
        "`any(self._found.values())` and clears it.",
        "`state_dict` holds five numbers: scale, streak, both factors, the interval. Exercises 2 "
        "and 3 have most of the rest.",
    ),
    why="This is the core of `torch.amp.GradScaler`. Its other lines deal with several devices "
    "and fused optimizers.",
    alternative="keep scale and streak in tensors, and let `update` call torch's own kernel, "
    "`torch._amp_update_scale_`.",
)


class MyScaler:
    """The right answer."""

    def __init__(
        self, init_scale: float, growth_factor: float, backoff_factor: float, growth_interval: int
    ) -> None:
        self._scale, self._streak = init_scale, 0
        self._growth, self._backoff, self._interval = growth_factor, backoff_factor, growth_interval
        self._found: dict[int, bool] = {}  # id of an optimizer → what unscaling found

    def scale(self, loss: Any) -> Any:
        return loss * self._scale

    def unscale_(self, optimizer: Any) -> None:
        found = False
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(self._scale)
                    found = found or not bool(parameter.grad.isfinite().all())
        self._found[id(optimizer)] = found

    def step(self, optimizer: Any) -> None:
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)]:
            optimizer.step()

    def update(self) -> None:
        found = any(self._found.values())
        self._found.clear()
        self._streak = 0 if found else self._streak + 1
        if found:
            self._scale *= self._backoff
        elif self._streak == self._interval:
            grown = self._scale * self._growth
            fits = torch.tensor(grown, dtype=torch.float32).isfinite()
            self._scale = grown if fits else self._scale
            self._streak = 0

    def get_scale(self) -> float:
        return self._scale

    def state_dict(self) -> Any:
        options = {"growth": self._growth, "backoff": self._backoff, "interval": self._interval}
        return {"scale": self._scale, "streak": self._streak, **options}

    def load_state_dict(self, state: Any) -> None:
        self._scale, self._streak = state["scale"], state["streak"]
        self._growth, self._backoff = state["growth"], state["backoff"]
        self._interval = state["interval"]


OPTIONS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval")
ROWS = ".. .. .. .. .. .. i. .. .n _. .. ._ -N .. .. .. I. .. h."  # at the last, the scale is 1/2


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """A run with a save and load, two at the ends of float32, and one with `unscale_`."""
    usual = dict(zip(OPTIONS, (8.0, 4.0, 0.125, 3), strict=True))
    other = dict(zip(OPTIONS, (2.0**127, 2.0, 0.5, 2), strict=True))
    run = Run("", answer, draw, **usual)
    yield from run.cases(f"{ROWS} n- .. .n ..")
    state, scale = run.save(), run.scale("while saving")
    if state is None:
        raise Wrong("`state_dict()` returned None. Return what the scaler has to remember")
    saved = repr(state)
    for case in (
        "after a save, and a load into a scaler made with 2^127",
        "after loading the state a second time",
    ):
        # The scaler trains on, and the state must not change with it
        list(Run("", lambda: run.scaler, draw).cases("ii .. .."))
        run.name = "after a save and load, "
        run.load(state, answer, **other)
        now = run.scale(case)
        changed = repr(state) != saved and now != scale
        yield Case(case, {"the saved state": "changed" if changed else "kept", "the scale": now})
    yield from run.cases(".. .. .i .. .. .. .. N. .I")
    for power in (127, -126):
        options = {**other, "init_scale": 2.0**power}
        run = Run(f"with a saved scale of 2^{power}, ", answer, draw, **options)
        run.load(run.save(), answer, **usual)
        for one in run.cases("i. .. .. .. .. .. i. .. .."):
            yield Case(one.name, {f"{output} in this run": x for output, x in one.outputs.items()})
    if is_blank(getattr(run.scaler, "unscale_", ...)):
        answer = MyScaler
    run = Run("in a run with clipping, ", answer, draw, **usual)
    for one in run.cases(f"{ROWS} .n ..", unscaled=True):
        # Other names, as before: an answer may have another mistake here, or no `unscale_`
        outputs = {f"{output} after `unscale_`": value for output, value in one.outputs.items()}
        yield Case(one.name, outputs)


SCALE = "return loss * self._scale"
GROUPS, THERE = "for group in optimizer.param_groups:", "if parameter.grad is not None:"
CHECK = "found = found or not bool(parameter.grad.isfinite().all())"
RETURNS = """if not parameter.grad.isfinite().all():
        self._found[id(optimizer)] = True
        return"""
FIRST = "if id(optimizer) not in self._found:"
IF = "if not self._found[id(optimizer)]:"
ANY = "found = any(self._found.values())"
STREAK = "self._streak = 0 if found else self._streak + 1"
BACKOFF = "self._scale *= self._backoff"
GROWS = "elif self._streak == self._interval:"
RESTART = "self._streak = 0"
LOAD = 'self._scale, self._streak = state["scale"], state["streak"]'
LOAD_FACTORS = 'self._growth, self._backoff = state["growth"], state["backoff"]'
NO_OPTIONS = {LOAD_FACTORS: "pass", 'self._interval = state["interval"]': "pass"}
CHANGED = (
    "the saved state changed while a scaler trained on. Copy it in `state_dict` and in "
    "`load_state_dict`"
)

mistakes = [
    Mistake(
        "does not scale",
        "`scale(loss)` is not the loss times the scale",
        edits={SCALE: "return loss"},
    ),
    Mistake(
        "never unscales",
        "the gradients still carry the scale at the step. Divide each `p.grad` in place, in "
        "`step` or before it",
        edits={"parameter.grad.div_(self._scale)": "pass"},
    ),
    Mistake(*families.A_GRADIENT_IS_NONE, edits={THERE: "if True:"}),
    Mistake(*families.FIRST_GROUP_ONLY, edits={GROUPS: GROUPS.replace("_groups", "_groups[:1]")}),
    Mistake(
        "one flag for all",
        "only one of the two optimizers gets unscaled gradients. Remember for each whether it is "
        "unscaled",
        edits={FIRST: "if not self._found:", IF: "if not self._found.get(id(optimizer)):"},
    ),
    Mistake(
        "unscales twice",
        "`step` divided gradients that the caller had unscaled already. Remember for each "
        "optimizer whether it is unscaled",
        edits={FIRST: "if True:"},
        violates="if you write it, it has to work",
    ),
    Mistake(
        "steps on inf",
        "the optimizer stepped with inf or NaN in its gradients. Call `optimizer.step()` only if "
        "all are finite",
        edits={IF: "if True:"},
        violates="inf and NaN",
    ),
    Mistake(
        "misses NaN",
        "the optimizer stepped with NaN in its gradients. NaN is not inf; `torch.isfinite` finds "
        "both",
        edits={CHECK: "found = found or bool(parameter.grad.isinf().any())"},
    ),
    Mistake(
        *families.JUDGES_BY_THE_NORM,
        edits={CHECK: "found = found or not parameter.grad.norm().isfinite()"},
    ),
    Mistake(
        "never steps",
        "`step(optimizer)` never calls `optimizer.step()`",
        edits={"optimizer.step()": "pass"},
    ),
    Mistake(
        "never forgets who is unscaled",
        "an optimizer is unscaled at its first step only. Clear the record of which are unscaled "
        "in `update()`",
        edits={"self._found.clear()": "pass"},
    ),
    Mistake(
        "shares what is found",
        "one optimizer's step was skipped for the other's inf or NaN. Keep what is found separate "
        "for each",
        edits={IF: "if not any(self._found.values()):"},
        violates="two optimizers",
    ),
    *[
        Mistake(
            f"updates in `step`{words}",
            "`step` updates the scale, even between the two optimizers' steps. Leave that to "
            "`update()`",
            edits={
                IF: "clean = not self._found[id(optimizer)]\nself.update()\nif clean:",
                ANY: f"{guard}{ANY}",
            },
        )
        for words, guard in {
            "": "if not self._found:\n    return\n",
            " and again after it": "",
        }.items()
    ],
    Mistake(
        "the last optimizer decides",
        "the last optimizer's clean step hid what another one found. Back off if any found "
        "something",
        edits={ANY: "found = list(self._found.values())[-1]"},
    ),
    Mistake(*families.KEEPS_THE_STREAK_AFTER_GROWTH, edits={RESTART: "pass"}),
    Mistake(
        "grows on and on",
        "after its first growth the scale grows at every clean step. Set the streak to 0 when it "
        "grows",
        edits={RESTART: "pass", GROWS: "elif self._streak >= self._interval:"},
    ),
    Mistake(
        "grows late",
        "the scale grows one clean update late. Count this update first, then compare with the "
        "interval",
        edits={GROWS: "elif self._streak > self._interval:"},
    ),
    Mistake(
        "looks at the gradients again",
        "`step` skips by what the gradients are now, after clipping. Keep what `unscale_` found",
        edits={
            IF: "now = [p.grad for group in optimizer.param_groups for p in group['params']]\n"
            "if all(one is None or one.isfinite().all() for one in now):"
        },
    ),
    Mistake(*families.KEEPS_THE_STREAK_AFTER_A_SKIP, edits={STREAK: "self._streak += not found"}),
    Mistake(
        *families.GROWS_TO_INF,
        edits={"self._scale = grown if fits else self._scale": "self._scale = grown"},
        violates="to the last bit",
    ),
    Mistake(
        *families.FLOOR_OF_1,
        edits={BACKOFF: "self._scale = max(self._scale * self._backoff, 1.0)"},
    ),
    Mistake(
        "forgets the scale",
        "a loaded scaler does not have the saved scale. `state_dict` has to hold it, and "
        "`load_state_dict` to set it",
        edits={LOAD: 'self._streak = state["streak"]'},
    ),
    Mistake(
        "the saved state changes",
        CHANGED,
        edits={
            'return {"scale": self._scale, "streak": self._streak, **options}': "return vars(self)",
            LOAD: "vars(self).update(state)",
            **NO_OPTIONS,
        },
    ),
    Mistake(
        "forgets the streak",
        "a loaded scaler does not go on with the saved streak of clean steps. Save and load that, "
        "too",
        edits={LOAD: 'self._scale, self._streak = state["scale"], 0'},
        violates="a save and load",
    ),
    Mistake(
        "saves only the scale",
        "a loaded scaler goes on with the saved scale, but not with the streak, the factors and "
        "the interval. Save and load those, too",
        edits={LOAD: 'self._scale, self._streak = state["scale"], 0', **NO_OPTIONS},
    ),
    *[
        Mistake(
            f"forgets its {name}",
            f"a loaded scaler uses the {words} it was made with. Save and load that, too",
            edits=edits,
        )
        for name, words, edits in (
            ("options", "factors and the interval", NO_OPTIONS),
            ("factors", "growth and backoff factors", {LOAD_FACTORS: "pass"}),
            ("interval", "interval", {'self._interval = state["interval"]': "pass"}),
        )
    ],
    *[
        Mistake(
            f"stops at the first inf{words}",
            "`unscale_` stops at the first inf or NaN, so some gradients still carry the scale. "
            "Remember what it found, and divide all of them",
            edits={line: new},
        )
        for words, line, new in (
            (", undivided", THERE, f"{THERE}\n    {RETURNS}"),
            ("", CHECK, RETURNS),
            (" of a group", CHECK, f"{CHECK}\nif found:\n    break"),
        )
    ],
]

scaler_class = Exercise(
    card,
    MyScaler,
    cases,
    mistakes,
    messages={
        "the saved state": CHANGED,
        LEFT: "`step` or `update` cleared the gradients. Leave that to the caller",
    },
)
