"""Exercise 2 of chapter 12: delayed scaling."""

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    alike,
    call_answer,
    families,
    read_number,
    read_pair,
    read_tensor,
)
from amp_course.frontiers.exercises.scale_to_fp8 import make_tensor

card = Card(
    chapter="frontiers",
    name="delayed_scale",
    number=2,
    title="A scale from the past",
    difficulty=3,
    importance=3,
    minutes=15,
    lines=13,
    task="For `delayed_scale`, write the class `DelayedScale(length)` with a method "
    "`quantize(x)`, called once per step. It returns `(q, scale)`: q is `x / scale` in "
    "`torch.float8_e4m3fn`, and what lies past ±448 becomes ±448. The scale is the largest of the "
    "latest `length` amaxes, divided by 448; the amax of x is recorded only after that. Before "
    "anything is recorded, and while all that is recorded is 0, the scale is 1. An amax that is "
    "not finite is not recorded. x is float32 and stays unchanged.",
    hints=(
        "Which amaxes are known when `quantize` is called? Do you use the history first, or "
        "record first?",
        "`collections.deque(maxlen=length)` drops the oldest amax. `max(history, default=0.0)` "
        "covers the first call.",
        "`largest = max(self.history, default=0.0)`, `scale = largest / 448 if largest else 1.0`, "
        "clamp, cast; then `amax = x.abs().max().item()`, and `self.history.append(amax)` if "
        "`math.isfinite(amax)`.",
    ),
    why="A scale from the past needs no pass over x before the cast, so the cast can be fused "
    "into the op that makes x. But a sudden outlier saturates.",
    alternative="a tensor of `length` zeros and `torch.roll`, as in Transformer Engine: no value "
    "is copied to the host.",
)


class DelayedScale:
    """The right answer."""

    def __init__(self, length: int) -> None:
        self.history: deque[float] = deque(maxlen=length)

    def quantize(self, x: Any) -> Any:
        largest = max(self.history, default=0.0)
        scale = largest / 448 if largest > 0 else 1.0
        scaled = x / scale
        q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
        amax = x.abs().max().item()
        if math.isfinite(amax):
            self.history.append(amax)
        return q, scale


INF, NAN = float("inf"), float("nan")
RUNS = (  # the length of the history; the amax of each step, with its sign
    (3, (7.0, 3.0, -40.0, 5.0, 2.0, 6.0, 1.0, -1.5, 0.5, 900.0, 3.0)),
    (1, (2.0, 8.0, 4.0, 1.0)),
    (4, (0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 2.0, 5.0)),
    (2, (4.0, INF, 3.1, 6.0, NAN, 2.0, NAN, INF, 1.0, 1.0)),
    (5, (1e-20, 3e-20, 2e-20, 1e-21)),
)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Two objects at once, then runs with rising and falling amaxes, zeros and overflows."""
    generator = torch.Generator().manual_seed(0)  # numbers that meet no tie; their order is drawn
    case = "with two objects at once"
    first, second = make(answer, 2), make(answer, 2)
    for amax in (3.0, 50.0):
        step(first, case, make_x(amax, generator, draw))
    other = step(second, case, make_x(1.0, generator, draw))["the scale"] * 448
    shared = min(abs(other - 50), abs(other - 3)) < 0.01
    yield Case(case, {"history": "shared" if shared else "its own"})
    if shared:  # each run would depend on those before
        return
    for length, amaxes in RUNS:
        one = make(answer, length)
        for number, amax in enumerate(amaxes):
            before = ", ".join(f"{abs(one):g}" for one in amaxes[:number])
            after = f", after amaxes of {before}" if before else ""
            case = f"at step {number + 1} with length {length}{after}"
            outputs = step(one, case, make_x(amax, generator, draw))
            yield Case(case, outputs, {"length": length}, {"q": outputs["q"]})


def make(answer: Callable[..., Any], length: int) -> Any:
    one = call_answer(answer, "at `DelayedScale(length)`", length)
    if not callable(getattr(one, "quantize", None)):
        raise Wrong("`DelayedScale(length)` has no method `quantize(x)`")
    return one


def make_x(amax: float, generator: torch.Generator, draw: random.Random) -> Tensor:
    """Return a tensor with a given amax, in any order; inf and NaN are among numbers to 1,000."""
    x = make_tensor(amax if math.isfinite(amax) else 1000.0, (12,), generator)
    if not math.isfinite(amax):
        x[5] = amax
    return x[draw.sample(range(12), 12)].view(2, 6)


def step(one: Any, case: str, x: Tensor) -> dict[str, Any]:
    """Quantize x, and return the outputs; elements that are not finite may become anything."""
    before, subject = x.clone(), "`quantize` returned"
    got = call_answer(one.quantize, case, x)
    first, second = read_pair(got, case, "the pair (q, scale)", subject)
    q = read_tensor(first, case, "a tensor, as the first of the pair", x.shape, subject)
    return {
        "the scale": read_number(second, case, "the scale that you return is"),
        "the dtype of q": q.dtype,
        "q": q.double()[before.isfinite()] + 0.0,
        "x": "unchanged" if alike(x, before) else "changed",
    }


HISTORY = "self.history: deque[float] = deque(maxlen=length)"
LARGEST = "largest = max(self.history, default=0.0)"
SCALE = "scale = largest / 448 if largest > 0 else 1.0"
SCALED = "scaled = x / scale"
Q = "q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)"
AMAX = "amax = x.abs().max().item()"
FINITE = "if math.isfinite(amax):"
RECORD = "self.history.append(amax)"
RETURN = "return q, scale"
CURRENT = "current = x.abs().nan_to_num(0, 0, 0).max().item()"
TAKE_NAN = {SCALE: "scale = largest / 448 if largest else 1.0"}
# The cast gave NaN in torch before 2.13 or so
CAST_SATURATES = torch.tensor([1000.0]).to(torch.float8_e4m3fn).float().item() < torch.inf
INF_RECORDED = (
    "an amax of inf or NaN is recorded, so one overflow, whose step the scaler skips anyway, makes "
    "the next scales unusable. Record only what is finite"
)
SHARED = "two objects share their history. Make it in `__init__`, as an attribute of `self`"

mistakes = [
    Mistake(
        "no delay",
        "the amax of x is recorded first, so it affects its own scale. That is current scaling, "
        "with its extra pass over x. Use the history first, then record",
        edits={LARGEST: f"{AMAX}\n{FINITE}\n    {RECORD}\n{LARGEST}", FINITE: "if False:"},
        violates="the amax of x is recorded only after that",
    ),
    *[
        Mistake(
            f"the current amax alone{words}",
            "the scale comes from x itself, not from the history: that is current scaling",
            edits={LARGEST: "largest = x.abs().max().item()", **more},
        )
        for words, more in {"": {}, ", even NaN": TAKE_NAN}.items()
    ],
    Mistake(
        "the larger of both",
        "you take the amax of x where it is larger than the history. That takes a pass over x, "
        "which delayed scaling avoids. Let x saturate",
        edits={
            LARGEST: f"{CURRENT}\nlargest = max([*self.history, current]) if self.history else 0.0"
        },
        violates="what lies past ±448 becomes ±448",
    ),
    Mistake(
        "only the latest",
        "only the latest amax decides. Take the largest of the latest {length}",
        edits={LARGEST: "largest = self.history[-1] if self.history else 0.0"},
        violates="the largest of the latest `length` amaxes",
    ),
    Mistake(
        "only the oldest",
        "only the oldest amax in the history decides. Take the largest in it",
        edits={LARGEST: "largest = self.history[0] if self.history else 0.0"},
    ),
    Mistake(
        "the mean",
        "you take the mean of the amaxes, and every larger one saturates. Take the largest",
        edits={LARGEST: "largest = sum(self.history) / max(len(self.history), 1)"},
    ),
    Mistake(
        "the smallest",
        "you take the smallest of the amaxes, and every larger one saturates. Take the largest",
        edits={LARGEST: LARGEST.replace("max", "min")},
    ),
    Mistake(
        "never forgets",
        "no amax is dropped, so an outlier makes later scales too large. Keep the latest {length}",
        edits={HISTORY: "self.history = deque[Any]()"},
    ),
    Mistake(
        "forgets too early",
        "the history holds one amax too few. Keep the latest {length}",
        edits={HISTORY: HISTORY.replace("length", "max(length - 1, 1)")},
    ),
    Mistake(
        "forgets too late",
        "the history holds one amax too many. Keep the latest {length}",
        edits={HISTORY: HISTORY.replace("length", "length + 1")},
    ),
    Mistake(
        "drops the newest",
        "once {length} amaxes are recorded, no new one enters, as with `pop()`. Drop the oldest",
        edits={
            HISTORY: "self.history, self.length = [], length",
            RECORD: f"if len(self.history) < self.length:\n    {RECORD}",
        },
    ),
    Mistake(
        "divides by 0",
        "a history of zeros gives a scale of 0, and `x / 0` is inf or NaN. Return 1 there",
        edits={SCALE: "scale = largest / 448 if self.history else 1.0"},
        violates="while all that is recorded is 0",
    ),
    Mistake(
        "keeps the scale through zeros",
        "with a history of zeros you keep the previous scale, as Transformer Engine does. The task "
        "asks for 1",
        edits={
            HISTORY: f"{HISTORY}\nself.scale = 1.0",
            SCALE: "scale = self.scale = largest / 448 if largest > 0 else self.scale",
        },
    ),
    Mistake(
        "zeros are not recorded",
        "an amax of 0 is not recorded, so older ones stay too long. Leave out only inf and NaN",
        edits={FINITE: "if 0 < amax < torch.inf:"},
    ),
    Mistake(
        "no first scale",
        "the history is empty at the first call, and `max` of nothing raises. The scale is 1 there",
        edits={LARGEST: "largest = max(self.history)"},
        violates="Before anything is recorded",
    ),
    Mistake(
        "the scale from x after zeros",
        "until an amax above 0 is recorded, the scale comes from x itself. The task asks for 1",
        edits={LARGEST: f"{CURRENT}\n{LARGEST} or current"},
    ),
    Mistake(
        "the first scale from x",
        "at the first step, the scale comes from x itself. The task asks for 1",
        edits={LARGEST: f"{CURRENT}\n{LARGEST.replace('0.0', 'current')}"},
    ),
    Mistake(
        "inf is recorded",
        INF_RECORDED,
        edits={FINITE: "if True:"},
        violates="An amax that is not finite is not recorded",
    ),
    Mistake("inf is recorded, and NaN used", INF_RECORDED, edits={FINITE: "if True:", **TAKE_NAN}),
    Mistake(
        "inf is recorded in a tensor",
        INF_RECORDED,
        edits={
            FINITE: "if True:",
            LARGEST: "largest = torch.tensor([*self.history, 0.0]).max().item()",
        },
    ),
    Mistake(
        "NaN is recorded",
        "an amax of NaN is recorded. `amax != inf` is True for NaN, so ask `math.isfinite(amax)`",
        edits={FINITE: "if amax != torch.inf:"},
    ),
    Mistake(
        "0 for inf",
        "0 is recorded for an amax that is not finite, and drops an older one. Record nothing",
        edits={FINITE: "amax = amax if amax < torch.inf else 0.0\nif True:"},
    ),
    Mistake(
        "the finite ones of x",
        "where x holds inf or NaN, you record the largest of its other elements. Record nothing",
        edits={AMAX: "amax = x[x.isfinite()].abs().max().item()"},
    ),
    Mistake(
        "records what comes back",
        "you record the amax of q, which never exceeds 448 times the scale, so the scale cannot "
        "grow. Record the amax of x",
        edits={AMAX: "amax = (q.float().abs().max() * scale).item()"},
    ),
    Mistake(*families.LARGEST_NOT_MAGNITUDE, edits={AMAX: "amax = x.max().item()"}),
    Mistake(*families.INVERTS_THE_SCALE, edits={RETURN: "return q, 1 / scale"}),
    Mistake(
        *families.MULTIPLIES_BY_THE_SCALE,
        edits={SCALED: "scaled = x * scale"},
        violates="q is `x / scale`",
    ),
    Mistake(
        "E5M2's largest number",
        "57344 is the largest number of E5M2. For E4M3, divide the amax by 448",
        edits={SCALE: SCALE.replace("448", "57344")},
        violates="divided by 448",
    ),
    Mistake(
        *families.KEEPS_FLOAT32,
        edits={RETURN: "return q.float(), scale"},
        violates="in `torch.float8_e4m3fn`",
    ),
    Mistake(
        "changes its input",
        "x itself is divided, as `div_` does it, so the recorded amax is wrong, too. Write "
        "`x / scale`, which makes a new tensor",
        edits={SCALED: "scaled = x.div_(scale)"},
        violates="and stays unchanged",
    ),
    Mistake(
        "a shared history",
        SHARED,
        edits={
            HISTORY: "self.history = vars(type(self)).get('shared', deque[Any](maxlen=length))\n"
            "type(self).shared = self.history"
        },
        violates="the class `DelayedScale(length)`",
    ),
]
if not CAST_SATURATES:
    mistakes.append(
        Mistake(
            "no clamp",
            "what lies past 448 becomes NaN in the cast, as E4M3 has no inf. Write "
            "`clamp(-448, 448)` before it",
            edits={Q: "q = scaled.to(torch.float8_e4m3fn)"},
        )
    )

delayed_scale = Exercise(
    card,
    DelayedScale,
    cases,
    mistakes,
    tolerance=1e-6,
    messages={"x": "{case}, `quantize` changes x. Work on a copy", "history": SHARED},
)
