"""Exercise 5 of chapter 03: a test that fails the RoPEs that were shipped broken,
and passes right ones.
"""

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
        "What does RoPE promise, whatever its layout and base? That holds between two numbers, "
        "not between two tensors.",
        "The score q · k of a query and a key that are 3 apart is the same everywhere. Where, in "
        "which dtype and in which region do the three faults show?",
        "For x in float32 and bf16, with autocast off and on: `scores = (rope(q, starts + 3) * "
        "rope(k, starts)).float().sum(-1)` for starts from 0 to some thousands, q and k expanded "
        "to (len(starts), d). `assert` that they differ by less than a fiftieth of |q| · |k|.",
    ),
    why="The faults passed every test with short inputs, float32 and no autocast: a test has to "
    "go where training goes.",
    alternative="if you know layout and base, compare with a float64 reference, "
    "`torch.testing.assert_close(…, atol=0.05, rtol=0)`: that also catches wrong frequencies, "
    "which keep scores flat.",
)

RopeFunction = Callable[[Tensor, Tensor], Tensor]
ROPES = {  # kind → its base, and what is said of it
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
                turned_queries, turned_keys = rope(queries, starts + 3), rope(keys, starts)
            scores = (turned_queries.float() * turned_keys.float()).sum(dim=-1)
            assert (scores - scores[0]).abs().max() < 0.02 * q.norm() * k.norm()


def make_rope(kind: str, base: float) -> RopeFunction:
    """Return one of the six RoPEs."""

    def rope(x: Tensor, positions: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        frequencies = base ** (-torch.arange(0, x.shape[-1], 2, dtype=wide) / x.shape[-1])
        ids = (positions.to(torch.bfloat16) if kind == "ids" else positions).to(wide)[:, None]
        angles = ids @ frequencies[None, :] if kind == "matmul" else ids * frequencies
        angles = angles.to(x.dtype) if kind == "angles" else angles.to(wide)
        cos, sin = (
            table.to(x.dtype if kind == "tables" else wide)
            for table in (angles.cos(), angles.sin())
        )
        with torch.autocast(
            x.device.type, enabled=False
        ):  # which cannot mix fp16 with float32 on a CPU
            first, second = (
                x.unflatten(-1, (-1, 2)).unbind(-1) if kind == "pairs" else x.chunk(2, dim=-1)
            )
            turned = [first * cos - second * sin, second * cos + first * sin]
            return (
                torch.stack(turned, -1).flatten(-2) if kind == "pairs" else torch.cat(turned, -1)
            ).to(x.dtype)

    return rope


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Run the test on three right RoPEs and three broken ones. Nothing is drawn:
    no verdict may depend on it.
    """
    for kind, (base, name) in ROPES.items():
        seen: set[str] = set()
        verdict, words = _verdict(answer, _watched(kind, base, seen), name, kind in RIGHT)
        why = _why_failed(answer) if verdict == "fails" and kind in RIGHT else ""
        why = _why_passed(answer, kind, seen) if verdict == "passes" and kind not in RIGHT else why
        yield Case(
            "", {"verdict": verdict}, {"saw": f"your test {words}{why and ': '}{why}"}, {"why": why}
        )


def _why_failed(answer: Callable[..., Any]) -> str:
    """Say why a test fails right RoPEs, if it passes one that rounds nothing."""
    exact = make_rope("pairs", 5e5)
    verdict, _ = _verdict(
        answer, lambda x, positions: exact(x.double(), torch.as_tensor(positions)), "", False
    )
    small = (
        "it passes one that computes in float64, so it is too strict: bf16 rounds. Let scores "
        "differ by up to |q| · |k| / 50"
    )
    return small if verdict == "passes" else ""


def _verdict(
    answer: Callable[..., Any], rope: RopeFunction, name: str, is_right: bool
) -> tuple[str, str]:
    """Return what a test does with a RoPE, "passes" or "fails" if it does what tests do,
    and that in words.
    """
    try:
        with same_random_state():
            (
                torch.manual_seed(0),
                random.seed(0),
                np.random.seed(0),
            )  # for tests that draw from the global generators
            got = answer(rope)
    except AssertionError as error:
        said = " ".join(str(error).split())[:80]
        return "fails", f"fails{said and f', with “{said}”,'} {name}"
    except Exception as error:
        if is_right or isinstance(error, (AttributeError, NameError, TypeError, LookupError)):
            raise Failed(f"for {name}") from error
        return (
            "raises",
            f"raises {type(error).__name__} for {name}. A test reports a fault by AssertionError",
        )
    if got is None:
        return "passes", f"passes {name}"
    shown = got if isinstance(got, bool) else f"an object of type {type(got).__name__}"
    return (
        "returns",
        f"returns {shown} for {name}. Pytest ignores that: a test raises, or returns nothing",
    )


def _watched(kind: str, base: float, seen: set[str]) -> RopeFunction:
    """Return a RoPE that notes in `seen` what a test gives it,
    and whether a wrong result came out.
    """
    rope, sound, places = make_rope(kind, base), make_rope("halves", base), set[str]()

    def watched(x: Tensor, positions: Any) -> Tensor:
        result = rope(x, positions := torch.as_tensor(positions))
        places.add(str(positions.tolist()))
        off = (result.float() - sound(x.float(), positions)).abs().max()
        notes = {
            "a call": True,
            "far positions": bool(
                positions.abs().max() > 256
            ),  # bf16 holds every integer up to there
            "positions that bf16 rounds": not positions.equal(
                positions.bfloat16().to(positions.dtype)
            ),
            "several places": len(places) > 1,
            "autocast": torch.is_autocast_enabled("cpu"),
            "16 bits": x.dtype.itemsize == 2,
            "a wrong result": bool(off > 0.1 * x.abs().max()),
        }
        seen.update(note for note, holds in notes.items() if holds)
        return result

    return watched


def _why_passed(answer: Callable[..., Any], kind: str, seen: set[str]) -> str:
    """Say why a test missed a fault, as far as its calls tell,
    and a RoPE that turns each four neighbours alike.
    """
    coarse, near = make_rope("pairs", 5e5), "far positions" not in seen
    blind = (
        _verdict(answer, lambda x, ids: coarse(x, torch.as_tensor(ids) // 4 * 4), "", False)[0]
        == "passes"
    )
    reasons = {
        "the test never calls `rope(x, positions)`": "a call" not in seen,
        "the results that it got were wrong, and it accepted them": seen
        >= {"a wrong result", "several places"},
        "it got wrong results, all at the same positions. Compare scores at several places": "a "
        "wrong result" in seen,
        "it is wrong only under autocast, where the test never calls it": kind == "matmul"
        and "autocast" not in seen,
        "it is right for float32 x, and the test gives it no other": kind == "angles"
        and "16 bits" not in seen,
        "it even passes one that turns four neighbours alike. Compare scores of a fixed offset": near
        and blind,
        "the test stays at near positions, and bf16 holds every integer up to 256": near,
        "bf16 holds all positions of the test, even the far ones: take odd ones too, and check "
        "those": kind == "ids" and "positions that bf16 rounds" not in seen,
        "no call of the test brings the fault out: combine far positions with bf16 x and with "
        "autocast": True,
    }
    return next(reason for reason, holds in reasons.items() if holds)


STARTS, DTYPES = (
    "starts = torch.arange(0, 5000, 7)",
    "for dtype in (torch.float32, torch.bfloat16):",
)
REGIONS, FLOAT32 = "for autocast in (False, True):", {DTYPES: "for dtype in (torch.float32,):"}
BOTH = "turned_queries, turned_keys = rope(queries, starts + 3), rope(keys, starts)"
FLAT = "assert (scores - scores[0]).abs().max() < 0.02 * q.norm() * k.norm()"

mistakes = [
    Mistake(
        "short context",
        "{saw}. Go to positions of some thousands",
        edits={STARTS: "starts = torch.arange(200)"},
        violates="loses its place",
    ),
    Mistake(
        "no autocast",
        '{saw}. Run it a second time in `with torch.autocast("cpu", dtype=torch.bfloat16):`',
        edits={REGIONS: "for autocast in (False,):"},
    ),
    Mistake(
        "float32 only",
        "{saw}. In training x is often bf16: run the test with bf16 x too",
        edits=FLOAT32,
    ),
    Mistake(
        "accepts wrong results",
        "{saw}. Let scores differ by |q| · |k| / 50 at most. An `assert` in a `try`, or of a "
        "tuple, may never fail",
        edits={FLAT: FLAT.replace("0.02", "3.0")},
    ),
    Mistake(
        "fails them all",
        "{saw}. It fails all six, and also one that computes in float64. Compare scores of a "
        "fixed offset",
        edits={FLAT: FLAT.replace("0.02", "-1.0")},
        violates="returns nothing for a right one",
    ),
    Mistake("too strict", "{saw}", edits={FLAT: FLAT.replace("0.02", "1e-6")}),
    Mistake(
        "one layout, one base",
        "{saw}. Compare its scores q · k of a fixed offset at two places: they agree in any "
        "layout, with any base",
        edits={BOTH: f"{BOTH}\nturned_keys = make_rope('halves', 1e4)(keys, starts)"},
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
