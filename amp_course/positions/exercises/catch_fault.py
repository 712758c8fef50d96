"""Exercise 5 of chapter 03: a test that fails broken RoPEs and passes right ones."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Failed, Mistake
from amp_course.kit.random_state import same_random_state

card = Card(
    chapter="positions",
    name="catch_fault",
    number=5,
    title="Write the test that would have caught it",
    difficulty=4,
    importance=5,
    minutes=15,
    lines=12,
    task="Write `catch_fault(rope)`, a test: it raises AssertionError for a RoPE that loses its "
    "place, and returns nothing for a right one. It is run against three right and three broken "
    "ones; you are not told the layout of their channels, nor their base.",
    hints=(
        "What does RoPE promise, whatever its layout and base? The promise is about two numbers, "
        "not about two tensors.",
        "The score q · k of a query and a key that are 3 apart is the same everywhere. Where, in "
        "which dtype and in which region do the three faults show?",
        "For x in float32 and bf16, with autocast off and on: `scores = (rope(q, starts + 3) * "
        "rope(k, starts)).float().sum(-1)` for starts from 0 to some thousands, q and k expanded "
        "to (len(starts), d). `assert` that they differ by less than a fiftieth of |q| · |k|.",
    ),
    why="The faults passed every test with short inputs, float32 and no autocast. A test has to "
    "cover what training does.",
    alternative="if you know layout and base, compare with a float64 reference, "
    "`torch.testing.assert_close(…, atol=0.05, rtol=0)`. That also catches wrong frequencies, "
    "which keep scores flat.",
)

RopeFunction = Callable[[Tensor, Tensor], Tensor]
ROPES = {  # kind → its base, and how messages describe it
    "halves": (1e4, "a right RoPE, which pairs channels c and c + d/2"),
    "pairs": (5e5, "a right RoPE, which pairs channels 2c and 2c + 1"),
    "tables": (1e5, "a right RoPE, which casts cos and sin last, to the dtype of x"),
    "ids": (1e4, "a RoPE whose position ids are cast to bf16"),
    "matmul": (1e5, "a RoPE whose outer product is a matmul"),
    "angles": (5e5, "a RoPE whose angles are cast to the dtype of x"),
}
RIGHT = ("halves", "pairs", "tables")


def right(rope: RopeFunction) -> None:
    q, k = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    starts = torch.arange(0, 5000, 7)
    for dtype in (torch.float32, torch.bfloat16):
        queries, keys = (vector.to(dtype).expand(len(starts), -1) for vector in (q, k))
        for autocast in (False, True):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                rotated_queries, rotated_keys = rope(queries, starts + 3), rope(keys, starts)
            scores = (rotated_queries.float() * rotated_keys.float()).sum(dim=-1)
            assert (scores - scores[0]).abs().max() < 0.02 * q.norm() * k.norm()


def make_rope(kind: str, base: float) -> RopeFunction:
    """Return one of the six RoPEs."""

    def rope(x: Tensor, positions: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        frequencies = base ** (-torch.arange(0, x.shape[-1], 2, dtype=wide) / x.shape[-1])
        ids = (positions.to(torch.bfloat16) if kind == "ids" else positions).to(wide)[:, None]
        angles = ids @ frequencies[None, :] if kind == "matmul" else ids * frequencies
        angles = angles.to(x.dtype if kind == "angles" else wide)
        table = x.dtype if kind == "tables" else wide
        cos, sin = angles.cos().to(table), angles.sin().to(table)
        # On a CPU, autocast cannot mix fp16 with float32.
        with torch.autocast(x.device.type, enabled=False):
            pairs = kind == "pairs"
            first, second = x.unflatten(-1, (-1, 2)).unbind(-1) if pairs else x.chunk(2, dim=-1)
            rotated = [first * cos - second * sin, second * cos + first * sin]
            result = torch.stack(rotated, -1).flatten(-2) if pairs else torch.cat(rotated, -1)
            return result.to(x.dtype)

    return rope


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Run the test on three right RoPEs and three broken ones. Nothing is drawn:
    no verdict may depend on it.
    """
    for kind, (base, name) in ROPES.items():
        notes, why = set[str](), ""
        verdict, words = _verdict(answer, _watched(kind, base, notes), name, kind in RIGHT)
        if verdict == "fails" and kind in RIGHT:
            why = _why_failed(answer)
        elif verdict == "passes" and kind not in RIGHT:
            why = _why_passed(answer, kind, notes)
        facts = {"saw": f"your test {words}{why and '. '}{why}"}
        yield Case("", {"verdict": verdict}, facts, {"why": why})


def _verdict(
    answer: Callable[..., Any], rope: RopeFunction, name: str = "", is_right: bool = False
) -> tuple[str, str]:
    """Return what a test does with a RoPE ("passes", "fails", "raises", "returns"), also in
    words.
    """
    try:
        with same_random_state():  # for tests that draw from the global generators
            torch.manual_seed(0), random.seed(0), np.random.seed(0)
            got = answer(rope)
    except AssertionError as error:
        message = str(error).split("\n")[0][:80]
        return "fails", f"fails {name}{message and f' (“{message}”)'}"
    except Exception as error:
        if is_right or isinstance(error, (AttributeError, NameError, TypeError, LookupError)):
            raise Failed(f"for {name}") from error
        kind = type(error).__name__
        return "raises", f"raises {kind} for {name}. A test reports a fault by AssertionError"
    if got is None:
        return "passes", f"passes {name}"
    shown = got if isinstance(got, bool) else f"an object of type {type(got).__name__}"
    return (
        "returns",
        f"returns {shown} for {name}. Pytest ignores that: a test raises, or returns nothing",
    )


def _watched(kind: str, base: float, notes: set[str]) -> RopeFunction:
    """Return a RoPE that notes what a test passes to it, and whether the result was wrong."""
    rope, sound, places = make_rope(kind, base), make_rope("halves", base), set[str]()

    def watched(x: Tensor, positions: Any) -> Tensor:
        result = rope(x, positions := torch.as_tensor(positions))
        places.add(str(positions.tolist()))
        error = (result.float() - sound(x.float(), positions)).abs().max()
        rounded = positions.bfloat16().to(positions.dtype)
        found = {
            "a call": True,
            "far positions": bool(positions.abs().max() > 256),  # bf16 holds all integers to there
            "positions that bf16 rounds": not positions.equal(rounded),
            "several places": len(places) > 1,
            "autocast": torch.is_autocast_enabled("cpu"),
            "16 bits": x.dtype.itemsize == 2,
            "a wrong result": bool(error > 0.1 * x.abs().max()),
        }
        notes.update(note for note, holds in found.items() if holds)
        return result

    return watched


def _why_failed(answer: Callable[..., Any]) -> str:
    """Say why a test fails right RoPEs, if it passes one that does not round."""
    exact = make_rope("pairs", 5e5)
    verdict, _ = _verdict(answer, lambda x, ids: exact(x.double(), torch.as_tensor(ids)))
    strict = (
        "It passes one that computes in float64, so it is too strict: bf16 rounds. Let scores "
        "differ by up to |q| · |k| / 50"
    )
    return strict if verdict == "passes" else ""


def _why_passed(answer: Callable[..., Any], kind: str, notes: set[str]) -> str:
    """Say why a test missed a fault, as far as its calls show. One reason comes from running it on
    a RoPE that rotates each four neighbours alike, another from one with unrelated angles.
    """
    coarse, near = make_rope("pairs", 5e5), "far positions" not in notes
    verdict, _ = _verdict(answer, lambda x, ids: coarse(x, torch.as_tensor(ids) // 4 * 4))
    any_turn, _ = _verdict(answer, lambda x, ids: coarse(x, torch.as_tensor(ids) ** 2 % 1009))
    reasons = {
        "The test never calls `rope(x, positions)`": "a call" not in notes,
        "The results that it got were wrong, and it accepted them": notes
        >= {"a wrong result", "several places"},
        "It even passes one that rotates by unrelated angles, as tests of norms do, and those "
        "that compare a RoPE only with itself. Compare scores of a fixed offset at several "
        "places": ("a wrong result" in notes and any_turn == "passes"),
        "It got wrong results, in calls that all had the same positions. Compare scores at several "
        "places": "a wrong result" in notes,
        "The RoPE is wrong only under autocast, where the test never calls it": (
            kind == "matmul" and "autocast" not in notes
        ),
        "The RoPE is right for float32 x, and the test passes no other": (
            kind == "angles" and "16 bits" not in notes
        ),
        "It even passes one that rotates four neighbours alike. Compare scores of a fixed offset": (
            near and verdict == "passes"
        ),
        "The test stays at near positions, and bf16 holds every integer up to 256": near,
        "bf16 holds all positions of the test, even the far ones. Test odd ones, too": (
            kind == "ids" and "positions that bf16 rounds" not in notes
        ),
        "No call of the test shows the fault. Combine far positions with bf16 x and with "
        "autocast": True,
    }
    return next(reason for reason, holds in reasons.items() if holds)


BOTH = "rotated_queries, rotated_keys = rope(queries, starts + 3), rope(keys, starts)"
FLAT = "assert (scores - scores[0]).abs().max() < 0.02 * q.norm() * k.norm()"

mistakes = [
    Mistake(
        "short context",
        "{saw}. Go to positions of some thousands",
        edits={"starts = torch.arange(0, 5000, 7)": "starts = torch.arange(200)"},
        violates="loses its place",
    ),
    Mistake(
        "no autocast",
        '{saw}. Run it a second time in `with torch.autocast("cpu", dtype=torch.bfloat16):`',
        edits={"for autocast in (False, True):": "for autocast in (False,):"},
    ),
    Mistake(
        "float32 only",
        "{saw}. In training x is often bf16, so run the test with bf16 x, too",
        edits={"for dtype in (torch.float32, torch.bfloat16):": "for dtype in (torch.float32,):"},
    ),
    Mistake(
        "accepts wrong results",
        "{saw}. Let scores differ by |q| · |k| / 50 at most. An `assert` in a `try`, or of a "
        "tuple, may never fail",
        edits={FLAT: FLAT.replace("0.02", "3.0")},
    ),
    Mistake(
        "fails them all",
        "{saw}. It fails all six, and also one that computes in float64. Compare scores of a fixed "
        "offset",
        edits={FLAT: FLAT.replace("0.02", "-1.0")},
        violates="returns nothing for a right one",
    ),
    Mistake("too strict", "{saw}", edits={FLAT: FLAT.replace("0.02", "1e-6")}),
    Mistake(
        "one layout, one base",
        "{saw}. Compare its scores q · k of a fixed offset at two places, which agree in any "
        "layout and with any base",
        edits={BOTH: f"{BOTH}\nrotated_keys = make_rope('halves', 1e4)(keys, starts)"},
        violates="you are not told the layout of their channels, nor their base",
    ),
    Mistake(
        "returns instead of asserting",
        "{saw}",
        edits={FLAT: f"if not {FLAT[7:]}:\n    return False"},
    ),
    Mistake(
        "raises another error",
        "{saw}, which `assert` raises",
        edits={FLAT: f"if not {FLAT[7:]}:\n    raise ValueError"},
        violates="raises AssertionError",
    ),
    Mistake(
        "never calls it",
        "{saw}. Call it with x (n, d) and integer positions (n,)",
        answer=lambda rope: None if callable(rope) else 1,
    ),
]

catch_fault = Exercise(card, right, cases, mistakes, messages={"verdict": "{saw}"})
