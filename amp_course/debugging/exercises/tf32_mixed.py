"""Patient 12 of chapter 11: a comparison that stops where it reads a setting."""

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from amp_course.checking import Card, Case, Exercise, Mistake, Wrong, read_bool, read_number
from amp_course.debugging.clinic.causes import cause
from amp_course.debugging.clinic.patients.tf32_mixed import measure as patient
from amp_course.debugging.clinic.trials import CAUSE, describe_cause, run_answer

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
        "Write and read `fp32_precision` only ('tf32', 'ieee'), and put back what it was; the "
        "cause is 'tf32-settings-mixed'.",
    ),
    why="`fp32_precision` can be read whichever of the two was written. A library that reads "
    "`allow_tf32` may still raise.",
    alternative="put the setting back in a `finally`, so that it is as before even if the model "
    "raises.",
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
    """Behaves like `torch.backends.cuda.matmul` in torch 2.13 (before 2.9, it has only the older
    name), and sets nothing.

    everywhere: what `torch.backends.fp32_precision` says, which holds where the newer name says
                "none"
    refused:    how often reading the older name raised
    """

    __slots__ = ("_everywhere", "_newer", "_older", "refused")

    def __init__(self, everywhere: str = "none") -> None:
        self._older, self._newer, self._everywhere = False, "none", everywhere
        self.refused = 0

    @property
    def allow_tf32(self) -> bool:
        """The older name. Raises RuntimeError where the newer one says something else."""
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
        """The newer name: "tf32", "ieee", or "none", which is full fp32.
        Where "none" was set, what holds for all of torch.
        """
        return self._everywhere if self._newer == "none" else self._newer

    @fp32_precision.setter
    def fp32_precision(self, precision: str) -> None:
        if precision not in ("tf32", "ieee", "none"):
            raise RuntimeError(f"Unknown precision: {precision}")
        self._newer = precision


CASES: tuple[
    tuple[str, str, dict[str, Any]], ...
] = (  # the case, the setting for all of torch, what the caller sets
    ("where the caller has set nothing", "none", {}),
    ('where the caller has set `fp32_precision = "tf32"`', "none", {"fp32_precision": "tf32"}),
    ("where the caller has set `allow_tf32 = True`", "none", {"allow_tf32": True}),
    ("where the caller has set `allow_tf32 = False`", "none", {"allow_tf32": False}),
    (
        'where `fp32_precision` is "none", and "tf32" for all of torch',
        "tf32",
        {"fp32_precision": "none"},
    ),
)
FULL = "full fp32"


def precision_of(matmul: Matmul) -> str:
    """Return what matmuls compute in: "tf32", or "full fp32" for "ieee" and "none"."""
    return "tf32" if matmul.fp32_precision == "tf32" else FULL


def as_tf32(x: torch.Tensor) -> torch.Tensor:
    """Return x without the last 13 bits of each number, which TF32 does not see."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


def read_older(matmul: Matmul) -> Any:
    """Return what reading `allow_tf32` gives, "a RuntimeError" included."""
    try:
        return matmul.allow_tf32
    except RuntimeError:
        return "a RuntimeError"


def read_pairs(got: Any, case: str) -> tuple[list[Any], list[float]]:
    """Return the flags and the means of an answer; raises Wrong for anything but a list of two
    pairs.
    """
    pairs = list(got) if isinstance(got, (list, tuple)) else []
    if len(pairs) != 2 or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs
    ):
        kind = "None" if got is None else f"an object of type {type(got).__name__}"
        if len(pairs) == 2:
            kind = f"two objects of types {type(pairs[0]).__name__} and {type(pairs[1]).__name__}"
        elif pairs:
            kind = f"a list of {len(pairs)}"
        raise Wrong(f"{case}, your function returned {kind}, not a list of two pairs")
    flags = [
        flag if isinstance(flag, str) else read_bool(flag, case, subject="a pair begins with")
        for flag, _ in pairs
    ]
    return flags, [read_number(mean, case, "a pair of yours holds") for _, mean in pairs]


def cases(answer: Any, draw: random.Random) -> Iterator[Case]:
    """Run the answer after a caller that has set nothing, or TF32 by either name,
    or all of torch.
    """
    causes: list[str] = []
    generator = torch.Generator().manual_seed(draw.getrandbits(31))
    for case, everywhere, settings in CASES:
        model, inputs = nn.Linear(6, 3), torch.randn(5, 6, generator=generator)
        model.weight.data = torch.randn(3, 6, generator=generator)
        matmul = Matmul(everywhere)
        for name, value in settings.items():
            setattr(matmul, name, value)
        passes: list[str] = []

        def multiply(
            module: Any, args: Any, matmul: Matmul = matmul, passes: list[str] = passes
        ) -> Any:
            passes.append(precision_of(matmul))
            return tuple(map(as_tf32, args)) if passes[-1] != FULL else args

        model.register_forward_pre_hook(multiply)
        got, named = run_answer(answer, case, model, inputs, matmul)
        causes.append(named)
        flags, means = read_pairs(got, case)
        refused = matmul.refused
        after = {"`fp32_precision`": precision_of(matmul)}
        if "fp32_precision" not in settings:
            after["`allow_tf32`"] = read_older(matmul)
        yield Case(
            case,
            {
                "the precision of the forward passes": passes,
                "the flags that you return": flags,
                "the mean outputs that you return": means,
                **{f"what {name} gives afterwards": value for name, value in after.items()},
            },
            evidence={"refused": refused},
        )
    yield Case("", {CAUSE: " and ".join(dict.fromkeys(causes))})  # once all else is right


BEFORE, AFTER = "before = matmul.fp32_precision", "matmul.fp32_precision = before"
SET, LOOP = "matmul.fp32_precision = precision", 'for precision in ("tf32", "ieee"):'
KEEP = 'results.append((matmul.fp32_precision == "tf32", mean))'
OLDER = 'matmul.allow_tf32 = precision == "tf32"'
MIXED = f'if precision == "tf32":\n    matmul.allow_tf32 = True\nelse:\n    {SET}'
CAUGHT = (
    "try:\n    allowed = matmul.allow_tf32\nexcept RuntimeError:\n    allowed = "
    "False\nresults.append((allowed, mean))"
)

mistakes = [
    Mistake(
        "unchanged",
        "`allow_tf32` is read after `fp32_precision` was set to something else, and raises: use "
        "`fp32_precision` throughout",
        answer=patient,
        violates="a `measure` without the fault",
    ),
    Mistake(
        "none for full fp32",
        "'none' is not full fp32. It leaves the setting to the one for all of torch, which may be "
        "TF32: write 'ieee'",
        edits={LOOP: LOOP.replace("ieee", "none")},
    ),
    Mistake(
        "only the read is gone",
        "`allow_tf32` is not read any more, but both names are written, and the caller's next "
        "read of it may raise: write `fp32_precision` only",
        edits={SET: MIXED},
    ),
    Mistake(
        "catches the error",
        "the error is caught, but the two names still disagree, and the caller's next read may "
        "raise: write `fp32_precision` only",
        edits={SET: MIXED, KEEP: CAUGHT},
    ),
    Mistake(
        "the older name only",
        "reading `allow_tf32` raises where the caller has set `fp32_precision`, which can always "
        "be read: use `fp32_precision` throughout",
        edits={
            BEFORE: "before = matmul.allow_tf32",
            SET: OLDER,
            AFTER: "matmul.allow_tf32 = before",
        },
        violates="The caller may have set it by either name",
    ),
    Mistake(
        "sets by the older name",
        "the runs set `allow_tf32`, which writes both names, and `fp32_precision` alone is put "
        "back: use the newer name throughout",
        edits={SET: OLDER},
    ),
    Mistake(
        "never puts it back",
        "the caller's setting is not put back, and stays as the last run left it: note "
        "`fp32_precision` at the start, and write it at the end",
        edits={AFTER: "pass"},
        violates="the same afterwards",
    ),
    Mistake(
        "one precision",
        "both runs use TF32: before the second, write 'ieee'",
        edits={LOOP: 'for precision in ("tf32", "tf32"):'},
        violates="with TF32, then in full fp32",
    ),
    Mistake(
        "the wrong order",
        "the run in full fp32 comes first: run with TF32 first",
        edits={LOOP: 'for precision in ("ieee", "tf32"):'},
    ),
    Mistake(
        "sets it for all of torch",
        "`matmul` stays as the caller left it in both runs, so neither has a precision of its "
        "own. Set it by `matmul.fp32_precision`, and not by a function for all of torch, such as "
        "`torch.set_float32_matmul_precision`",
        edits={
            SET: 'torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")'
        },
    ),
    Mistake(
        "the names of the precisions",
        "each pair should begin with True or False: return `matmul.fp32_precision == 'tf32'`",
        edits={KEEP: "results.append((matmul.fp32_precision, mean))"},
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
        "In the patient, `allow_tf32` was True and `fp32_precision` was 'ieee' when it raised."
    ),
)
