"""Exercise 2 of chapter 12: delayed scaling, along histories of amaxes that each mistake gets wrong."""

import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Case, Exercise, Mistake, Wrong, call_answer, read_number, read_pair, read_tensor
from amp_course.frontiers.exercises.scale_to_fp8 import make_tensor

delayed_scale = Exercise(
    chapter="frontiers", name="delayed_scale", number=2, title="A scale from the past", difficulty=3, importance=3, minutes=15,
    lines=13,
    task="For `delayed_scale`, write the class `DelayedScale(length)` with a method `quantize(x)`, called once per step. It "
    "returns `(q, scale)`: q is `x / scale` in `torch.float8_e4m3fn`, and what lies past ±448 becomes ±448. The scale is the "
    "largest of the latest `length` amaxes, divided by 448; the amax of x is recorded only after that. Before anything is "
    "recorded, and while all that is recorded is 0, the scale is 1. An amax that is not finite is not recorded. x is float32 "
    "and stays unchanged.",
    hints=(
        "Which amaxes are known when `quantize` is called? In which order do you use and record?",
        "`collections.deque(maxlen=length)` forgets what is too old. `max(history, default=0.0)` covers the first call.",
        "`largest = max(self.history, default=0.0)`, `scale = largest / 448 if largest else 1.0`, clamp, cast; then "
        "`amax = x.abs().max().item()`, and `self.history.append(amax)` if `math.isfinite(amax)`.",
    ),
    why="A scale from the past needs no pass over x before the cast, so the cast can be fused into the op that makes x. The "
    "price: a sudden outlier saturates.",
    alternative="a tensor of `length` zeros and `torch.roll`, as in Transformer Engine: no value travels to the host.",
)  # fmt: skip


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
RUNS: tuple[tuple[int, tuple[float, ...]], ...] = (  # the length of the history; the amax of each step, with its sign
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
    """Runs with histories of several lengths: rising and falling amaxes, zeros, overflows; before that, two objects at once."""
    generator = torch.Generator().manual_seed(0)  # fixed numbers, none of which meets a tie; their order is drawn
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
            case = f"with length {length}, at step {number}" + (f", after amaxes of {before}" if before else "")
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
    """Quantise x, and return the facets; those elements of x that are not finite may become anything."""
    before = x.clone()
    got = call_answer(one.quantize, case, x)
    first, second = read_pair(got, case, "the pair (q, scale)", "`quantize` returned")
    q = read_tensor(first, case, "a tensor, as the first of the pair", x.shape, "`quantize` returned")
    scale = read_number(second, case, "the scale that you return is")
    values = q.double()[before.isfinite()] + 0.0
    return {
        "the scale": scale,
        "the dtype of q": q.dtype,
        "q": values,
        "x": "unchanged" if torch.equal(x.nan_to_num(), before.nan_to_num()) else "changed",
    }


HISTORY, LARGEST = "self.history = deque[Any](maxlen=length)", "largest = max(self.history, default=0.0)"
SCALE, SCALED = "scale = largest / 448 if largest > 0 else 1.0", "scaled = x / scale"
Q, AMAX = "q = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)", "amax = x.abs().max().item()"
FINITE, RECORD, RETURN = "if amax < torch.inf:", "self.history.append(amax)", "return q, scale"
CURRENT = "current = x.abs().nan_to_num(0, 0, 0).max().item()"
OR_NAN = "scale = largest / 448 if largest else 1.0"
CAST_SATURATES = bool(
    torch.tensor([1000.0]).to(torch.float8_e4m3fn).float().isfinite()
)  # NaN in torch before 2.13 or so
UNCLAMPED = Mistake(
    "no clamp", edits={Q: "q = scaled.to(torch.float8_e4m3fn)"},
    feedback="what lies past 448 becomes NaN in the cast, for E4M3 has no inf: `clamp(-448, 448)` before it",
)  # fmt: skip

delayed_scale.judge_by(
    right=DelayedScale, cases=cases, tolerance=1e-6, said=SAID, mistakes=[
        Mistake("no delay", violates="the amax of x is recorded only after that",
                edits={LARGEST: f"{AMAX}\n{FINITE}\n    {RECORD}\n{LARGEST}", FINITE: "if False:"},
                feedback="the amax of x is recorded before the scale is computed, so it decides on its own scale. That is "
                         "current "
                "scaling, with its extra pass over x: use the history first, then record"),
        Mistake("the current amax alone", edits={LARGEST: "largest = x.abs().max().item()"},
                feedback="the scale comes from x itself, and not from the history: that is current scaling"),
        Mistake("the current amax alone, even NaN", edits={LARGEST: "largest = x.abs().max().item()", SCALE: OR_NAN},
                feedback="the scale comes from x itself, and not from the history: that is current "
                "scaling"),
        Mistake("the larger of both", violates="what lies past ±448 becomes ±448",
                edits={LARGEST: f"{CURRENT}\nlargest = max([*self.history, current]) if self.history else 0.0"},
                feedback="where the amax of x is larger than the history, you take it. To know it takes a pass over x, which "
                         "delayed "
                "scaling is there to avoid: let x saturate"),
        Mistake("only the latest", violates="the largest of the latest `length` amaxes",
                edits={LARGEST: "largest = self.history[-1] if self.history else 0.0"},
                feedback="only the latest amax decides, so a large one saturates after every small one: take the largest of the "
                "latest {length}"),
        Mistake("only the oldest", edits={LARGEST: "largest = self.history[0] if self.history else 0.0"},
                feedback="only the oldest amax in the history decides: take the largest of all in it"),
        Mistake("the mean", edits={LARGEST: "largest = sum(self.history) / max(len(self.history), 1)"},
                feedback="you take the mean of the amaxes, and every larger one saturates: take the largest"),
        Mistake("the smallest", edits={LARGEST: "largest = min(self.history, default=0.0)"},
                feedback="you take the smallest of the amaxes, and every larger one saturates: take the largest"),
        Mistake("never forgets", edits={HISTORY: "self.history = deque[Any]()"},
                feedback="nothing is ever forgotten: after one outlier all later scales are too large, and small numbers become "
                "0. Keep the latest {length} amaxes"),
        Mistake("forgets too early", edits={HISTORY: "self.history = deque[Any](maxlen=max(length - 1, 1))"},
                feedback="the history holds one amax too few: keep the latest {length}"),
        Mistake("forgets too late", edits={HISTORY: "self.history = deque[Any](maxlen=length + 1)"},
                feedback="the history holds one amax too many: keep the latest {length}"),
        Mistake("divides by 0", violates="while all that is recorded is 0",
                edits={SCALE: "scale = largest / 448 if self.history else 1.0"},
                feedback="a history of zeros gives a scale of 0, and `x / 0` is inf or NaN: the scale is 1 there"),
        Mistake("keeps the scale through zeros",
                edits={HISTORY: f"{HISTORY}\nself.scale = 1.0",
                       SCALE: "scale = self.scale = largest / 448 if largest > 0 else self.scale"},
                feedback="in a history of zeros you keep the scale of before, as Transformer Engine does. The card asks for 1"),
        Mistake("zeros are not recorded", edits={FINITE: "if 0 < amax < torch.inf:"},
                feedback="an amax of 0 is not recorded, so older ones stay in the history too long: leave out only inf and NaN"),
        Mistake("no first scale", violates="Before anything is recorded",
                edits={LARGEST: "largest = max(self.history)"},
                feedback="the history is empty at the first call, and `max` of nothing raises: the scale is 1 there"),
        Mistake("the scale from x after zeros",
                edits={LARGEST: f"{CURRENT}\nlargest = max(self.history, default=0.0) or current"},
                feedback="at the first step, and while all that is recorded is 0, the scale comes "
                "from x itself: the card asks for 1"),
        Mistake("the first scale from x", edits={LARGEST: f"{CURRENT}\nlargest = max(self.history, default=current)"},
                feedback="at the first step, the scale comes from x itself: the card asks for 1"),
        Mistake("inf is recorded", violates="An amax that is not finite is not recorded", edits={FINITE: "if True:"},
                feedback="an amax of inf or NaN is recorded, and spoils the scale of the next steps: one overflow, whose step "
                         "the "
                "scaler skips anyway, would do that. Record only what is finite"),
        Mistake("inf is recorded, and NaN used", edits={FINITE: "if True:", SCALE: OR_NAN},
                feedback="an amax of inf or NaN is recorded, and spoils the scale of the next steps: "
                "one overflow, whose step the scaler skips anyway, would do that. Record only "
                "what is finite"),
        Mistake("inf is recorded in a tensor",
                edits={FINITE: "if True:", LARGEST: "largest = torch.tensor([*self.history, 0.0]).max().item()"},
                feedback="an amax of inf or NaN is recorded, and spoils the scale of the next steps: one overflow, whose step "
                         "the "
                "scaler skips anyway, would do that. Record only what is finite"),
        Mistake("NaN is recorded", edits={FINITE: "if amax != torch.inf:"},
                feedback="an amax of NaN is recorded. Every comparison with NaN is False, `amax != inf` is True: ask "
                "`math.isfinite(amax)`"),
        Mistake("0 for inf", edits={FINITE: "amax = amax if amax < torch.inf else 0.0\nif True:"},
                feedback="0 is recorded for an amax that is not finite, and pushes an older amax out: record nothing"),
        Mistake("the finite ones of x", edits={AMAX: "amax = x[x.isfinite()].abs().max().item()"},
                feedback="where x holds inf or NaN, you record the largest of its other elements: the card asks to record "
                         "nothing"),
        Mistake("records what comes back", edits={AMAX: "amax = (q.float().abs().max() * scale).item()"},
                feedback="you record the amax of q, after rounding and saturation: it never exceeds 448 scales, so the scale "
                         "cannot "
                "grow. Record the amax of x"),
        Mistake("the largest, not the largest magnitude", edits={AMAX: "amax = x.max().item()"},
                feedback="you record the largest number of x. A negative one may be larger in magnitude: take `x.abs().max()`"),
        Mistake("inverts the scale", edits={RETURN: "return q, 1 / scale"},
                feedback="q is right, but this is the factor that leads to q: the scale is what q is multiplied by to come back"),
        Mistake("multiplies by the scale", violates="q is `x / scale`", edits={SCALED: "scaled = x * scale"},
                feedback="q is `x / scale`, and you multiply"),
        Mistake("E5M2's largest number", violates="divided by 448", edits={SCALE: SCALE.replace("448", "57344")},
                feedback="57344 is the largest number of E5M2: for E4M3, divide the amax by 448"),
        Mistake("keeps float32", violates="in `torch.float8_e4m3fn`", edits={RETURN: "return q.float(), scale"},
                feedback="q is rounded, but stored in float32, which takes four times the memory: return it in float8"),
        Mistake("changes x", violates="and stays unchanged", edits={SCALED: "scaled = x.div_(scale)"},
                feedback="x itself is divided, as `div_` does it, and then the wrong amax is recorded, too: write `x / scale`, "
                         "which "
                "makes a new tensor"),
        Mistake("a shared history", violates="the class `DelayedScale(length)`",
                edits={HISTORY: "if not hasattr(type(self), 'shared'):\n    type(self).shared = deque[Any](maxlen=length)\n"
                                "self.history = type(self).shared"},
                feedback="two objects share their history: make it in `__init__`, as an attribute of `self` and not of the "
                         "class"),
        *([] if CAST_SATURATES else [UNCLAMPED]),
    ],
)  # fmt: skip
