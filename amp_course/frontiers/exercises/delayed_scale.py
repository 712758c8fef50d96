"""Exercise 2 of chapter 12: delayed scaling, along histories of amaxes that each mistake gets
wrong.
"""

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
    call_answer,
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
        "Which amaxes are known when `quantize` is called? In which order do you use and record?",
        "`collections.deque(maxlen=length)` forgets what is too old. `max(history, default=0.0)` "
        "covers the first call.",
        "`largest = max(self.history, default=0.0)`, `scale = largest / 448 if largest else 1.0`, "
        "clamp, cast; then `amax = x.abs().max().item()`, and `self.history.append(amax)` if "
        "`math.isfinite(amax)`.",
    ),
    why="A scale from the past needs no pass over x before the cast, so the cast can be fused "
    "into the op that makes x. The price: a sudden outlier saturates.",
    alternative="a tensor of `length` zeros and `torch.roll`, as in Transformer Engine: no value "
    "travels to the host.",
)


class DelayedScale:
    """The right answer."""

    def __init__(self, length: int) -> None:
        self.history = deque[Any](maxlen=length)

    def quantize(self, x: Any) -> Any:
        largest = max(self.history, default=0.0)
        scale = largest / 448 if largest > 0 else 1.0
        scaled = x / scale
        q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
        amax = x.abs().max().item()
        if amax < torch.inf:
            self.history.append(amax)
        return q, scale


INF, NAN = float("inf"), float("nan")
RUNS: tuple[
    tuple[int, tuple[float, ...]], ...
] = (  # the length of the history; the amax of each step, with its sign
    (3, (7.0, 3.0, -40.0, 5.0, 2.0, 6.0, 1.0, -1.5, 0.5, 900.0, 3.0)),
    (1, (2.0, 8.0, 4.0, 1.0)),
    (4, (0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 2.0, 5.0)),
    (2, (4.0, INF, 3.1, 6.0, NAN, 2.0, NAN, INF, 1.0, 1.0)),
    (5, (1e-20, 3e-20, 2e-20, 1e-21)),
)
AT_ONCE = "with two objects at once"
SAID = {
    "x": "{case}, `quantize` changes x: work on a copy",
    "history": "two objects share their history: make it in `__init__`, as an attribute of `self`",
}


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Runs with histories of several lengths: rising and falling amaxes, zeros, overflows;
    before that, two objects at once.
    """
    generator = torch.Generator().manual_seed(
        0
    )  # fixed numbers, none of which meets a tie; their order is drawn
    first, second = make(answer, 2), make(answer, 2)
    for amax in (3.0, 50.0):
        step(first, AT_ONCE, make_x(amax, generator, draw))
    other = step(second, AT_ONCE, make_x(1.0, generator, draw))["the scale"] * 448
    shared = min(abs(other - 50), abs(other - 3)) < 0.01
    yield Case(AT_ONCE, {"history": "shared" if shared else "its own"})
    if shared:  # what comes next depends on what was done before
        return
    for length, amaxes in RUNS:
        one = make(answer, length)
        for number, amax in enumerate(amaxes, 1):
            x = make_x(amax, generator, draw)
            before = ", ".join(f"{abs(one):g}" for one in amaxes[: number - 1])
            case = f"with length {length}, at step {number}" + (
                f", after amaxes of {before}" if before else ""
            )
            outputs = step(one, case, x)
            yield Case(case, outputs, {"length": length}, {"q": outputs["q"]})


def make(answer: Callable[..., Any], length: int) -> Any:
    one = call_answer(answer, "at `DelayedScale(length)`", length)
    if not callable(getattr(one, "quantize", None)):
        raise Wrong("`DelayedScale(length)` has no method `quantize(x)`")
    return one


def make_x(amax: float, generator: torch.Generator, draw: random.Random) -> Tensor:
    """Make a tensor with a given amax, in any order; inf and NaN are among numbers up to 1,000."""
    x = make_tensor(amax if -INF < amax < INF else 1000.0, (12,), generator)
    if not -INF < amax < INF:
        x[5] = amax
    return x[draw.sample(range(12), 12)].view(2, 6)


def step(one: Any, case: str, x: Tensor) -> dict[str, Any]:
    """Quantise x, and return the facets; those elements of x that are not finite may become
    anything.
    """
    before = x.clone()
    got = call_answer(one.quantize, case, x)
    first, second = read_pair(got, case, "the pair (q, scale)", "`quantize` returned")
    q = read_tensor(
        first, case, "a tensor, as the first of the pair", x.shape, "`quantize` returned"
    )
    scale = read_number(second, case, "the scale that you return is")
    values = q.double()[before.isfinite()] + 0.0
    return {
        "the scale": scale,
        "the dtype of q": q.dtype,
        "q": values,
        "x": "unchanged" if torch.equal(x.nan_to_num(), before.nan_to_num()) else "changed",
    }


HISTORY, LARGEST = (
    "self.history = deque[Any](maxlen=length)",
    "largest = max(self.history, default=0.0)",
)
SCALE, SCALED = "scale = largest / 448 if largest > 0 else 1.0", "scaled = x / scale"
Q, AMAX = "q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)", "amax = x.abs().max().item()"
FINITE, RECORD, RETURN = "if amax < torch.inf:", "self.history.append(amax)", "return q, scale"
CURRENT = "current = x.abs().nan_to_num(0, 0, 0).max().item()"
OR_NAN = "scale = largest / 448 if largest else 1.0"
CAST_SATURATES = bool(
    torch.tensor([1000.0]).to(torch.float8_e4m3fn).float().isfinite()
)  # NaN in torch before 2.13 or so
UNCLAMPED = Mistake(
    "no clamp",
    "what lies past 448 becomes NaN in the cast, for E4M3 has no inf: `clamp(-448, 448)` before it",
    edits={Q: "q = scaled.to(torch.float8_e4m3fn)"},
)

mistakes = [
    Mistake(
        "no delay",
        "the amax of x is recorded before the scale is computed, so it decides on its own scale. "
        "That is current scaling, with its extra pass over x: use the history first, then record",
        edits={LARGEST: f"{AMAX}\n{FINITE}\n    {RECORD}\n{LARGEST}", FINITE: "if False:"},
        violates="the amax of x is recorded only after that",
    ),
    Mistake(
        "the current amax alone",
        "the scale comes from x itself, and not from the history: that is current scaling",
        edits={LARGEST: "largest = x.abs().max().item()"},
    ),
    Mistake(
        "the current amax alone, even NaN",
        "the scale comes from x itself, and not from the history: that is current scaling",
        edits={LARGEST: "largest = x.abs().max().item()", SCALE: OR_NAN},
    ),
    Mistake(
        "the larger of both",
        "where the amax of x is larger than the history, you take it. To know it takes a pass "
        "over x, which delayed scaling is there to avoid: let x saturate",
        edits={
            LARGEST: f"{CURRENT}\nlargest = max([*self.history, current]) if self.history else 0.0"
        },
        violates="what lies past ±448 becomes ±448",
    ),
    Mistake(
        "only the latest",
        "only the latest amax decides, so a large one saturates after every small one: take the "
        "largest of the latest {length}",
        edits={LARGEST: "largest = self.history[-1] if self.history else 0.0"},
        violates="the largest of the latest `length` amaxes",
    ),
    Mistake(
        "only the oldest",
        "only the oldest amax in the history decides: take the largest of all in it",
        edits={LARGEST: "largest = self.history[0] if self.history else 0.0"},
    ),
    Mistake(
        "the mean",
        "you take the mean of the amaxes, and every larger one saturates: take the largest",
        edits={LARGEST: "largest = sum(self.history) / max(len(self.history), 1)"},
    ),
    Mistake(
        "the smallest",
        "you take the smallest of the amaxes, and every larger one saturates: take the largest",
        edits={LARGEST: "largest = min(self.history, default=0.0)"},
    ),
    Mistake(
        "never forgets",
        "nothing is ever forgotten: after one outlier all later scales are too large, and small "
        "numbers become 0. Keep the latest {length} amaxes",
        edits={HISTORY: "self.history = deque[Any]()"},
    ),
    Mistake(
        "forgets too early",
        "the history holds one amax too few: keep the latest {length}",
        edits={HISTORY: "self.history = deque[Any](maxlen=max(length - 1, 1))"},
    ),
    Mistake(
        "forgets too late",
        "the history holds one amax too many: keep the latest {length}",
        edits={HISTORY: "self.history = deque[Any](maxlen=length + 1)"},
    ),
    Mistake(
        "divides by 0",
        "a history of zeros gives a scale of 0, and `x / 0` is inf or NaN: the scale is 1 there",
        edits={SCALE: "scale = largest / 448 if self.history else 1.0"},
        violates="while all that is recorded is 0",
    ),
    Mistake(
        "keeps the scale through zeros",
        "in a history of zeros you keep the scale of before, as Transformer Engine does. The card "
        "asks for 1",
        edits={
            HISTORY: f"{HISTORY}\nself.scale = 1.0",
            SCALE: "scale = self.scale = largest / 448 if largest > 0 else self.scale",
        },
    ),
    Mistake(
        "zeros are not recorded",
        "an amax of 0 is not recorded, so older ones stay in the history too long: leave out only "
        "inf and NaN",
        edits={FINITE: "if 0 < amax < torch.inf:"},
    ),
    Mistake(
        "no first scale",
        "the history is empty at the first call, and `max` of nothing raises: the scale is 1 there",
        edits={LARGEST: "largest = max(self.history)"},
        violates="Before anything is recorded",
    ),
    Mistake(
        "the scale from x after zeros",
        "at the first step, and while all that is recorded is 0, the scale comes from x itself: "
        "the card asks for 1",
        edits={LARGEST: f"{CURRENT}\nlargest = max(self.history, default=0.0) or current"},
    ),
    Mistake(
        "the first scale from x",
        "at the first step, the scale comes from x itself: the card asks for 1",
        edits={LARGEST: f"{CURRENT}\nlargest = max(self.history, default=current)"},
    ),
    Mistake(
        "inf is recorded",
        "an amax of inf or NaN is recorded, and spoils the scale of the next steps: one overflow, "
        "whose step the scaler skips anyway, would do that. Record only what is finite",
        edits={FINITE: "if True:"},
        violates="An amax that is not finite is not recorded",
    ),
    Mistake(
        "inf is recorded, and NaN used",
        "an amax of inf or NaN is recorded, and spoils the scale of the next steps: one overflow, "
        "whose step the scaler skips anyway, would do that. Record only what is finite",
        edits={FINITE: "if True:", SCALE: OR_NAN},
    ),
    Mistake(
        "inf is recorded in a tensor",
        "an amax of inf or NaN is recorded, and spoils the scale of the next steps: one overflow, "
        "whose step the scaler skips anyway, would do that. Record only what is finite",
        edits={
            FINITE: "if True:",
            LARGEST: "largest = torch.tensor([*self.history, 0.0]).max().item()",
        },
    ),
    Mistake(
        "NaN is recorded",
        "an amax of NaN is recorded. Every comparison with NaN is False, `amax != inf` is True: "
        "ask `math.isfinite(amax)`",
        edits={FINITE: "if amax != torch.inf:"},
    ),
    Mistake(
        "0 for inf",
        "0 is recorded for an amax that is not finite, and pushes an older amax out: record "
        "nothing",
        edits={FINITE: "amax = amax if amax < torch.inf else 0.0\nif True:"},
    ),
    Mistake(
        "the finite ones of x",
        "where x holds inf or NaN, you record the largest of its other elements: the card asks to "
        "record nothing",
        edits={AMAX: "amax = x[x.isfinite()].abs().max().item()"},
    ),
    Mistake(
        "records what comes back",
        "you record the amax of q, after rounding and saturation: it never exceeds 448 scales, so "
        "the scale cannot grow. Record the amax of x",
        edits={AMAX: "amax = (q.float().abs().max() * scale).item()"},
    ),
    Mistake(
        "the largest, not the largest magnitude",
        "you record the largest number of x. A negative one may be larger in magnitude: take "
        "`x.abs().max()`",
        edits={AMAX: "amax = x.max().item()"},
    ),
    Mistake(
        "inverts the scale",
        "q is right, but this is the factor that leads to q: the scale is what q is multiplied by "
        "to come back",
        edits={RETURN: "return q, 1 / scale"},
    ),
    Mistake(
        "multiplies by the scale",
        "q is `x / scale`, and you multiply",
        edits={SCALED: "scaled = x * scale"},
        violates="q is `x / scale`",
    ),
    Mistake(
        "E5M2's largest number",
        "57344 is the largest number of E5M2: for E4M3, divide the amax by 448",
        edits={SCALE: SCALE.replace("448", "57344")},
        violates="divided by 448",
    ),
    Mistake(
        "keeps float32",
        "q is rounded, but stored in float32, which takes four times the memory: return it in "
        "float8",
        edits={RETURN: "return q.float(), scale"},
        violates="in `torch.float8_e4m3fn`",
    ),
    Mistake(
        "changes x",
        "x itself is divided, as `div_` does it, and then the wrong amax is recorded, too: write "
        "`x / scale`, which makes a new tensor",
        edits={SCALED: "scaled = x.div_(scale)"},
        violates="and stays unchanged",
    ),
    Mistake(
        "a shared history",
        "two objects share their history: make it in `__init__`, as an attribute of `self` and "
        "not of the class",
        edits={
            HISTORY: "if not hasattr(type(self), 'shared'):\n    type(self).shared = "
            "deque[Any](maxlen=length)\nself.history = type(self).shared"
        },
        violates="the class `DelayedScale(length)`",
    ),
    *([] if CAST_SATURATES else [UNCLAMPED]),
]

delayed_scale = Exercise(card, DelayedScale, cases, mistakes, tolerance=1e-6, messages=SAID)
