"""Exercise 3 of chapter 02: a softmax in fp16 with large logits and masked rows."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from amp_course.checking import Card, Case, Exercise, Mistake, call_answer, read_tensor

card = Card(
    chapter="underflow",
    name="safe_softmax",
    number=3,
    title="A softmax that survives",
    difficulty=3,
    importance=5,
    minutes=12,
    lines=6,
    task="Write `safe_softmax(logits, mask)`: the softmax of each row, right to fp16's precision, "
    "for fp16 logits between −100 and 100 and a mask, both (rows, n) and left unchanged. Rows may "
    "be long. True in the mask means visible. Masked elements get exactly 0, a row in which "
    "everything is masked is all 0, and the result is fp16.",
    hints=(
        "There are two traps: exp(100) is inf even in float32, and what is the maximum of a row "
        "that contains only −inf?",
        "Compute in float32. Fill what is masked with a finite number far below every "
        "logit: `torch.finfo(…).min` of the dtype you compute in.",
        "`x = logits.float().masked_fill(~mask, torch.finfo(torch.float32).min)`, then subtract "
        "the row's maximum, exp, divide by the row's sum (or `torch.softmax`, which does all "
        "that). Last, `masked_fill(~mask, 0)` and back to fp16.",
    ),
    why="One sequence that is only padding gives a row of NaN, and makes the loss, a mean over the "
    "batch, NaN too.",
    alternative="fill with −inf, as torch's own attention does, and set the empty rows to 0 "
    "with `torch.where`.",
)


def right(logits: Tensor, mask: Tensor) -> Tensor:
    x = logits.float()
    x = x.masked_fill(~mask, torch.finfo(torch.float32).min)
    top = x.amax(dim=-1, keepdim=True)
    e = torch.exp(x - top)
    shares = e / e.sum(dim=-1, keepdim=True)
    shares = shares.masked_fill(~mask, 0)
    return shares.to(logits.dtype)


CASES = {  # rows of logits; for each row, which logits are visible
    "for small logits": (
        [[1, 2, 3, 0], [0.5, -1, 0, 2], [-2, -1, -3, -3]],
        ["1101", "0111", "1011"],
    ),
    "where one logit of each row is visible": ([[1, 2, 3, 0], [3, 5, 4, 5]], ["0100", "0001"]),
    "for logits around 20": (
        [[20.3, 19.1, 18.45, 20.2], [21.3, 22.3, 20.4, 19.2]],
        ["1110", "0111"],
    ),
    "for logits around 100": ([[100, 99, 98, 97], [98.5, 99, 100, 98]], ["1111", "1101"]),
    "where one row is near 100 and one near −100": (
        [[100, 99, 98, 9], [-100, -99.5, -99, -98]],
        ["1110", "1100"],
    ),
    "where one logit is 100 and the others are −100": ([[100, -100, -100, -100]], ["1111"]),
    "where the largest logit of a row is masked": (
        [[100, -99, -98, -100], [-98, -100, 100, 100]],
        ["0111", "1100"],
    ),
    "for 65,537 equal logits, one of them masked": ([[7] * 65_537], ["0" + "1" * 65_536]),
    # Here, bf16 rounds most, and so does a logarithm in fp16.
    "for 3,813 equal logits": ([[7] * 3813], ["1" * 3813]),
    # Here, fp16 rounds x − top.
    "where some shares are small": (
        [[8.5] + [2**-8] * 3, [-1, 0, -0.5, 8.5]],
        ["1111", "1011"],
    ),
    "where fp16 holds tiny shares": ([[0, -14, -16.5]], ["111"]),  # 8.3e-7 and 6e-8
    "where everything in one row is masked": ([[1, 2, 3, 4], [5, 20, 7, 8]], ["1110", "0000"]),
}
NAN, SINGLE, CHANGES = (
    "the rows of NaN",
    "the share of a single visible logit",
    "what changes",
)


def cases(answer: Callable[..., Any], draw: random.Random) -> Iterator[Case]:
    """Fixed rows for each trap, then drawn ones, of which the last is masked entirely."""
    level = draw.uniform(-98, 98)
    drawn = [[level + draw.uniform(-2, 2) for _ in range(6)] for _ in range(5)]
    visible = [*("".join(draw.sample("001111", 6)) for _ in range(4)), "000000"]
    for case, (rows, places) in {**CASES, "for drawn logits": (drawn, visible)}.items():
        logits = torch.tensor(rows, dtype=torch.float16)
        mask = torch.tensor([[place == "1" for place in row] for row in places])
        far = mask & (logits < logits.masked_fill(~mask, -torch.inf).amax(dim=-1, keepdim=True) - 7)
        some = mask.any(dim=-1)
        given = logits.clone(), mask.clone()
        got = read_tensor(call_answer(answer, case, *given), case, shape=logits.shape)
        # One NaN in a row counts as a row of NaN.
        shares = got.double().where(got.isfinite().all(dim=-1, keepdim=True), torch.nan)
        single = shares[mask & (mask.sum(-1, keepdim=True) == 1)]
        outputs = {
            NAN: int((shares.isnan().any(dim=-1) & some).sum()),
            "the softmax": shares[some],
            "the small shares": shares[far],
            SINGLE: bool((single == 1).all()),
            "the row that is masked entirely": shares[~some].flatten(),
            "the largest share of anything masked": shares.masked_fill(mask, 0).abs().max().item(),
            "the dtype that comes back": got.dtype,
            CHANGES: [not torch.equal(given[0], logits), not torch.equal(given[1], mask)],
        }
        yield Case(
            case, outputs, evidence={"small shares that are 0": int((shares[far] == 0).sum())}
        )


WIDE, FILL = "x = logits.float()", "x = x.masked_fill(~mask, torch.finfo(torch.float32).min)"
TOP, EXP = "top = x.amax(dim=-1, keepdim=True)", "e = torch.exp(x - top)"
SHARES = "shares = e / e.sum(dim=-1, keepdim=True)"
LAST, RETURN = "shares = shares.masked_fill(~mask, 0)", "return shares.to(logits.dtype)"
OVERFLOW = (
    "exp overflows: exp(100) is inf in float32 too, and inf / inf is NaN. Subtract the row's "
    "maximum"
)
AS_ZERO = (
    "masked logits count as logits of 0, and exp(0) is 1: fill with a number far below every logit"
)

nan = [
    Mistake(
        "exp overflows in fp16",
        "exp overflows: in fp16 it is inf from 11.1 on, and inf / inf is NaN. Subtract the row's "
        "maximum",
        edits={WIDE: "x = logits", FILL: "pass", EXP: "e = torch.exp(x) * mask"},
        violates="fp16 logits between −100 and 100",
    ),
    Mistake(
        "exp overflows in float32", OVERFLOW, edits={FILL: "pass", EXP: "e = torch.exp(x) * mask"}
    ),
    Mistake("no maximum", OVERFLOW, edits={EXP: "e = torch.exp(x)"}),
    Mistake(
        "one maximum for all rows",
        "every exp in a row far below the others is 0: subtract each row's own maximum, "
        "`x.amax(dim=-1, keepdim=True)`",
        edits={TOP: "top = x.max()", EXP: "e = torch.exp(x - top) * mask"},
        violates="of each row",
    ),
    Mistake(
        "maximum of what is masked",
        "every visible exp in a row is 0 where a masked logit is far larger: fill it before the "
        "maximum and exp",
        edits={FILL: "pass", EXP: "e = torch.exp(x - top) * mask"},
    ),
]
mistakes = [
    *nan,
    *(
        Mistake(
            f"{one.name}, and NaN becomes 0",
            one.feedback.replace("is NaN", "is NaN, for which you return 0"),
            edits={**one.edits, RETURN: RETURN.replace("shares", "shares.nan_to_num()")},
        )
        for one in nan
    ),
    Mistake(
        "NaN in an empty row",
        "a row in which everything is masked becomes NaN, like −inf − (−inf) and 0 / 0. Fill with "
        "a finite number, `torch.finfo(dtype).min`, and set what is masked to 0 at the end",
        edits={FILL: "x = x.masked_fill(~mask, -torch.inf)", LAST: "pass"},
        violates="a row in which everything is masked is all 0",
    ),
    Mistake(
        "equal shares in an empty row",
        "a row in which everything is masked gets equal shares: set what is masked to 0 at the end",
        edits={LAST: "pass"},
    ),
    Mistake(
        "fills past fp16's range",
        "you fill with a number beyond fp16's range, which ends at 65504: convert the logits with "
        "`.float()` first",
        edits={WIDE: "x = logits", FILL: "x = x.masked_fill(~mask, -1e9)"},
    ),
    Mistake(
        "fills with −100",
        "masked logits count as logits of −100: fill with a number far below every logit",
        edits={FILL: "x = x.masked_fill(~mask, -100.0)"},
    ),
    Mistake(
        "subtracts in fp16",
        "small shares are off, since fp16 rounds `x - top`: convert the logits with `.float()` "
        "first",
        edits={WIDE: "x = logits", FILL: FILL.replace("32", "16"), EXP: f"{EXP}.float()"},
    ),
    Mistake(
        "mask inverted",
        "you use the mask the wrong way round: True means visible",
        edits={FILL: FILL.replace("~", ""), LAST: LAST.replace("~", "")},
        violates="True in the mask means visible",
    ),
    *(
        Mistake(
            f"fills what is visible with {name}",
            "the visible logits are left out and the masked ones count, as their fill is the wrong "
            "way round: fill where the mask is False, `~mask`",
            edits={FILL: f"x = x.masked_fill(mask, {value})"},
        )
        for name, value in {"−inf": "-torch.inf", "a finite number": "-1e30"}.items()
    ),
    Mistake(
        "no mask",
        "the mask has no effect: what is masked gets a share of 0, and must not count in the sum",
        edits={FILL: "pass", LAST: "pass"},
        violates="and a mask",
    ),
    Mistake(
        "masks the result",
        "the visible logits get their shares of the whole row, including masked logits: mask the "
        "logits too",
        edits={FILL: "pass"},
    ),
    Mistake(
        "multiplies the logits by the mask", AS_ZERO, edits={FILL: "x = x * mask", LAST: "pass"}
    ),
    Mistake("multiplies logits and result by the mask", AS_ZERO, edits={FILL: "x = x * mask"}),
    Mistake(
        "over the columns",
        "the columns add up to 1 instead of the rows: use `dim=-1`",
        edits={TOP: TOP.replace("-1", "0"), SHARES: SHARES.replace("-1", "0")},
    ),
    Mistake(
        "float32 comes back",
        "the values are right, but the result is float32: end with `.to(logits.dtype)`",
        edits={RETURN: "return shares"},
        violates="the result is fp16",
    ),
    Mistake(
        "a sum in fp16",
        "in a long row every share is 0, since a sum beyond fp16's range is inf: compute in "
        "float32, including the sum, and round only the result",
        edits={SHARES: SHARES.replace("e.sum", "e.half().sum")},
        violates="right to fp16's precision",
    ),
    Mistake(
        "adds one by one in fp16",
        "in a long row the shares are too large, since a sum of 1s in fp16 stops growing at 2048: "
        "add up in float32",
        edits={SHARES: "shares = e / torch.from_numpy(e.half().numpy().cumsum(-1)[:, -1:])"},
        violates="Rows may be long",
    ),
]

safe_softmax = Exercise(
    card,
    right,
    cases,
    mistakes,
    tolerance=1.25e-3,
    messages={
        NAN: "{case}, {got} of the rows with something visible are NaN. Look for inf / inf and "
        "0 / 0: from each row, subtract the maximum of what is visible before exp",
        SINGLE: "{case}, its share is not exactly 1. If you add an eps to the sum, use a smaller "
        "one",
        CHANGES: "{case}, your function changes its logits or its mask: work on a copy",
    },
)
