"""Exercise 12 of chapter 11: a comparison that raises where it reads a setting."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import (
    Card,
    Case,
    Exercise,
    Mistake,
    Wrong,
    read_bool,
    read_number,
    read_pair,
)
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.scripts.tf32_mixed import measure as faulty
from amp_course.debugging.clinic.trials import Runner, describe_cause

card = Card(
    chapter="debugging",
    name="tf32_mixed",
    number=12,
    title="An error from reading a setting",
    difficulty=2,
    importance=3,
    minutes=6,
    lines=9,
    task="TF32 lets a GPU multiply fp32 matrices faster, with inputs rounded to 11 significant "
    "bits (chapter 09, section 8). torch has two names for the setting: `allow_tf32`, True or "
    "False, and the newer `fp32_precision`, 'tf32' or 'ieee' (full fp32), or 'none', which leaves "
    "it to the setting for all of torch. Write `tf32_mixed(model, inputs, matmul)`, a `measure` "
    "without the fault. It runs the model with TF32, then in full fp32, and returns a pair for "
    "each run in a list: whether TF32 was allowed, and the mean output. `matmul` behaves like "
    "`torch.backends.cuda.matmul` in torch 2.13. The caller may have set it by either name: read "
    "by that name, the setting must be the same afterwards. Name the fault in its first line, by "
    "`cause(…)`.",
    hints=(
        "`allow_tf32` and `fp32_precision` set the same thing. Which of the two do the lines of "
        "`measure` write, which do they read?",
        "Writing `allow_tf32` sets both names, writing `fp32_precision` the newer one alone. "
        "Reading `allow_tf32` raises where the two disagree.",
        "Write and read `fp32_precision` only ('tf32', 'ieee'), and restore it at the end; the "
        "cause is 'tf32-settings-mixed'.",
    ),
    why="`fp32_precision` can be read whichever of the two was written. A library that reads "
    "`allow_tf32` may still raise.",
    alternative="restore the setting in a `finally`, so also if the model raises.",
)


def right(model: Any, inputs: Any, matmul: Any) -> list[tuple[bool, float]]:
    cause("tf32-settings-mixed")
    before = matmul.fp32_precision
    results = []
    for precision in ("tf32", "ieee"):
        matmul.fp32_precision = precision
        mean = model(inputs).mean().item()
        results.append((matmul.fp32_precision == "tf32", mean))
    matmul.fp32_precision = before
    return results


class Matmul:
    """Behaves like `torch.backends.cuda.matmul` in torch 2.13 (before 2.9, it has only
    `allow_tf32`), and sets nothing.

    everywhere: `torch.backends.fp32_precision`, used where `fp32_precision` is "none"
    refused:    how often reading `allow_tf32` raised
    """

    __slots__ = ("_everywhere", "_newer", "_older", "refused")

    def __init__(self, everywhere: str = "none") -> None:
        self._older, self._newer, self._everywhere = False, "none", everywhere
        self.refused = 0

    @property
    def allow_tf32(self) -> bool:
        """The older name. Raises RuntimeError where the newer one disagrees."""
        if self._older != (self.fp32_precision == "tf32"):
            self.refused += 1
            raise RuntimeError(
                "PyTorch is checking whether allow_tf32_new is enabled for cuBlas matmul, and you "
                "have used a mix of the legacy and new APIs to set the TF32 status for cublas "
                "matmul. We suggest only using the new API to set the TF32 flag."
            )
        return self._older

    @allow_tf32.setter
    def allow_tf32(self, allowed: bool) -> None:
        if not isinstance(allowed, bool):
            raise TypeError(f"allow_tf32 is set to True or False, not to {allowed!r}")
        self._older, self._newer = allowed, "tf32" if allowed else "ieee"

    @property
    def fp32_precision(self) -> str:
        """The newer name: "tf32", "ieee", or "none" if nothing is set for all of torch either."""
        return self._everywhere if self._newer == "none" else self._newer

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        if precision not in ("tf32", "ieee", "none"):
            raise RuntimeError(f"Unknown precision: {precision}")
        self._newer = precision


def precision_of(matmul: Matmul) -> str:
    return "tf32" if matmul.fp32_precision == "tf32" else "full fp32"


def read_older(matmul: Matmul) -> Any:
    try:
        return matmul.allow_tf32
    except RuntimeError:
        return "a RuntimeError"


def read_pairs(got: Any, case: str) -> tuple[list[Any], list[float]]:
    """Return the flags and the means. Raises Wrong for anything but a list of two pairs."""
    pairs = list(got) if isinstance(got, (list, tuple)) else []
    if len(pairs) != 2:
        kind = f"a list of {len(pairs)}" if pairs else f"an object of type {type(got).__name__}"
        raise Wrong(f"{case}, your function returned {kind}, not a list of two pairs")
    flags, means = [], []
    for pair in pairs:
        flag, mean = read_pair(pair, case, subject="your list holds")
        is_name = isinstance(flag, str)
        flags.append(flag if is_name else read_bool(flag, case, subject="a pair begins with"))
        means.append(read_number(mean, case, "a pair of yours holds"))
    return flags, means


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Run the answer after a caller has set nothing, TF32 by either name, or all of torch."""
    run, generator = Runner(answer), torch.Generator().manual_seed(draw.getrandbits(31))
    for case, everywhere, name, value in (  # the setting for all of torch, what the caller sets
        ("where the caller has set nothing", "none", "", ""),
        ('where the caller has set `fp32_precision = "tf32"`', "none", "fp32_precision", "tf32"),
        ("where the caller has set `allow_tf32 = True`", "none", "allow_tf32", True),
        ("where the caller has set `allow_tf32 = False`", "none", "allow_tf32", False),
        (
            'where `fp32_precision` is "none", and "tf32" for all of torch',
            *("tf32", "fp32_precision", "none"),
        ),
    ):
        model, inputs = nn.Linear(6, 3), torch.randn(5, 6, generator=generator)
        model.weight.data = torch.randn(3, 6, generator=generator)
        matmul, passes = Matmul(everywhere), list[str]()
        if name:
            setattr(matmul, name, value)

        def multiply(module: Any, args: Any, matmul: Any = matmul, passes: Any = passes) -> Any:
            passes.append(precision_of(matmul))
            if passes[-1] == "tf32":  # which does not see the last 13 bits of a number
                return ((args[0].view(torch.int32) & ~0x1FFF).view(torch.float32),)

        model.register_forward_pre_hook(multiply)
        flags, means = read_pairs(run(case, model, inputs, matmul), case)
        refused = matmul.refused
        after = {"`fp32_precision`": precision_of(matmul)}
        if name != "fp32_precision":
            after["`allow_tf32`"] = read_older(matmul)
        yield Case(
            case,
            {
                "the precision of the forward passes": passes,
                "the flags that you return": flags,
                "the mean outputs that you return": means,
                **{f"what {one} gives afterwards": value for one, value in after.items()},
            },
            evidence={"refused": refused},
        )
    yield run.last_case()


BEFORE, AFTER = "before = matmul.fp32_precision", "matmul.fp32_precision = before"
SET, LOOP = "matmul.fp32_precision = precision", 'for precision in ("tf32", "ieee"):'
KEEP = 'results.append((matmul.fp32_precision == "tf32", mean))'
SET_OLDER = 'matmul.allow_tf32 = precision == "tf32"'
SET_BOTH = f'if precision == "tf32":\n    matmul.allow_tf32 = True\nelse:\n    {SET}'

mistakes = [
    Mistake(
        "unchanged",
        "`allow_tf32` raises after `fp32_precision` was set otherwise. Use `fp32_precision` only",
        answer=faulty,
        violates="a `measure` without the fault",
    ),
    Mistake(
        "none for full fp32",
        "'none' leaves the setting to the one for all of torch, which may be TF32. Write 'ieee'",
        edits={LOOP: LOOP.replace("ieee", "none")},
    ),
    Mistake(
        "only the read is gone",
        "both names are written, so a caller's read of `allow_tf32` may raise. Write "
        "`fp32_precision` only",
        edits={SET: SET_BOTH},
    ),
    Mistake(
        "catches the error",
        "the two names still disagree, so a caller's read of `allow_tf32` may raise. Write "
        "`fp32_precision` only",
        edits={
            SET: SET_BOTH,
            KEEP: "try:\n    allowed = matmul.allow_tf32\nexcept RuntimeError:\n"
            "    allowed = False\nresults.append((allowed, mean))",
        },
    ),
    Mistake(
        "the older name only",
        "`allow_tf32` raises where the caller has set `fp32_precision`. Use `fp32_precision` only",
        edits={
            BEFORE: "before = matmul.allow_tf32",
            SET: SET_OLDER,
            AFTER: "matmul.allow_tf32 = before",
        },
        violates="The caller may have set it by either name",
    ),
    Mistake(
        "sets by the older name",
        "setting `allow_tf32` writes both names, but only one is restored. Use `fp32_precision` "
        "only",
        edits={SET: SET_OLDER},
    ),
    Mistake(
        "never puts it back",
        "the caller's setting is lost. Save `fp32_precision` first, and restore it at the end",
        edits={AFTER: "pass"},
        violates="the same afterwards",
    ),
    Mistake(
        "one precision",
        "both runs use TF32. Write 'ieee' before the second",
        edits={LOOP: LOOP.replace("ieee", "tf32")},
        violates="with TF32, then in full fp32",
    ),
    Mistake(
        "the wrong order",
        "the run in full fp32 comes first. Run with TF32 first",
        edits={LOOP: 'for precision in ("ieee", "tf32"):'},
    ),
    Mistake(
        "sets it for all of torch",
        "`matmul` stays as the caller left it in both runs. Set `matmul.fp32_precision`, and do "
        "not call a function for all of torch, such as `torch.set_float32_matmul_precision`",
        edits={
            SET: 'torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")'
        },
    ),
    Mistake(
        "the names of the precisions",
        "a pair begins with True or False. Return `matmul.fp32_precision == 'tf32'`",
        edits={KEEP: KEEP.replace(' == "tf32"', "")},
        violates="whether TF32 was allowed",
    ),
]

tf32_mixed = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1e-5,
    messages=describe_cause(
        "In the faulty script, `allow_tf32` was True and `fp32_precision` was 'ieee' when it "
        "raised."
    ),
)
