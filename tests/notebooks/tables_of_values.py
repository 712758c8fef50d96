"""Hold the tables of what numbers do: limits of formats, what dies, scalers, fixes.

Each function takes the rows of one table of a chapter's Markdown, and raises AssertionError where
torch, ml_dtypes or the course's data say something else. `test_tables.py` calls them.
"""

import inspect
import re
from fractions import Fraction

import ml_dtypes
import numpy
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce_with_logits
from torch.nn.functional import conv1d, log_softmax

from amp_course.autocast.policy import REFERENCE
from amp_course.recipes.phrasebook import AMP

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
F16, INF = torch.float16, float("inf")
HALVES = {"fp16": F16, "bf16": torch.bfloat16}


def code_names(text):
    return re.findall(r"`([^`]+)`", text)


def value(formula, **widths):
    """Compute a formula as it is written: "(2 − 2⁻¹⁰) · 2¹⁵" → Fraction(65504)."""
    formula = re.sub("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda run: f"**({run[0].translate(SUPERSCRIPTS)})", formula)
    formula = re.sub("<sup>(.*?)</sup>", r"**(\1)", formula).replace("−", "-").replace("·", "*")
    formula = re.sub(r"\d+", r"Fraction(\g<0>)", formula.replace(",", ""))
    return eval(formula, {"Fraction": Fraction}, widths)


def check_widths(rows):
    kinds = {"fp16": (5, 10, numpy.float16), "fp32": (8, 23, numpy.float32)}
    kinds |= {"fp64": (11, 52, numpy.float64), "bf16": (8, 7, ml_dtypes.bfloat16)}
    kinds |= {"fp8 E5M2": (5, 2, ml_dtypes.float8_e5m2)}
    for what, formula, fp16 in rows[1:]:
        for name, (e, m, dtype) in kinds.items():
            limits = ml_dtypes.finfo(dtype)
            truth = {"largest": limits.max, "smallest normal": limits.smallest_normal}
            truth |= {"smallest subnormal": limits.smallest_subnormal, "eps": limits.eps}
            truth |= {"eps, the ulp at 1": limits.eps, "bias": 1 - limits.minexp}
            exact = Fraction(float(truth[what]))
            assert value(formula, E=e, M=m, bias=2 ** (e - 1) - 1) == exact, (what, name)
            if name == "fp16":
                assert all(value(side) == exact for side in fp16.split("=")), what
    assert rows[0][2] == "fp16: E = 5, M = 10"


def lost(dtype):
    """Return what dies in a dtype, by the first words of a row."""
    one = torch.ones((), dtype=dtype)
    large = torch.tensor([12.0]).to(dtype)
    return {
        "small gradients": torch.tensor(2.0**-26).to(dtype) == 0,
        "a small term": 4096 * one + one == 4096 * one,
        "a small update": one + 1e-4 == one,
        "exp, squares": large.exp() == INF and (300 * one).square() == INF,
        "`eps`": torch.tensor(1e-8).to(dtype) == 0,
        "masks": torch.tensor(-1e9).to(dtype) == -INF,
    }


def check_what_dies(rows):
    for what, where, remedy in rows[1:]:
        died = [
            name
            for name, dtype in HALVES.items()
            for words, dead in lost(dtype).items()
            if what.startswith(words) and dead
        ]
        assert ", ".join(died) == where.replace("both", "fp16, bf16"), what
        if "on a GPU, autocast" in remedy:
            for op in code_names(remedy):
                assert op in REFERENCE["cuda"]["fp32"] and op not in REFERENCE["cpu"]["fp32"], op
        if "an `eps` of" in remedy:
            eps = float(re.search("`eps` of ([0-9e-]+)", remedy)[1])
            assert torch.tensor(eps).half() > 2.0**-14 and "`fused=True`" in remedy
            weight = nn.Parameter(torch.zeros(1, dtype=F16))
            weight.grad = torch.tensor([1e-4]).half()
            torch.optim.Adam([weight], lr=0.1, fused=True).step()
            assert weight.isfinite()
        if what == "masks" and "scores" in remedy:
            scores = torch.full((3,), -16.0, dtype=F16)
            low = eval(code_names(remedy)[0], {"torch": torch, "scores": scores})
            assert torch.full_like(scores, low).softmax(0).isfinite().all()
            assert "add nothing" in remedy and (scores + low).softmax(0).isnan().all()


def check_scaler_defaults(rows):
    assert rows[1][0] == "PyTorch, `torch.amp.GradScaler`"
    scaler = torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.ones(1))
    scaler.scale(weight * INF).backward()
    scaler.step(torch.optim.SGD([weight]))
    scaler.update()
    told = {name: one.default for name, one in inspect.signature(type(scaler)).parameters.items()}
    assert scaler.get_scale() == told["init_scale"] / 2  # after one bad step
    (first,) = (one for one in AMP.phrases if one.thing == "the scaler's defaults")
    start, clean, bad = (
        int(one.replace(",", ""))
        for one in re.search(
            r"([\d,]+); doubles after ([\d,]+) good steps, halves after (\d) bad",
            first.words["torch_amp"],
        ).groups()
    )
    assert (start, clean) == (told["init_scale"], told["growth_interval"])
    since, old_start, old_clean = re.search(
        r"since ([\d.]+); .* ([\d,]+) and ([\d,]+) steps", first.words["paddle"]
    ).groups()
    assert rows[2][0].startswith(f"Paddle [{since}]") and "and newer" in rows[2][0]
    old = [float(one.replace(",", "")) for one in (old_start, old_clean)]
    told_here = [[float(value(one)) for one in row[1:]] for row in rows[1:]]
    assert told_here[:2] == [[start, clean, bad]] * 2 and told_here[2][:2] == old


def check_loop(rows):
    after = []
    for column, bad in ((0, 1.0), (1, 1.0), (1, INF)):
        weight = nn.Parameter(torch.ones(1))
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        names = {"scaler": scaler, "optimizer": torch.optim.SGD([weight], lr=0.25)}
        names["loss"] = weight * bad
        for row in rows[1:]:
            for call in code_names(row[column]):
                eval(call, names)
        after.append((weight.item(), weight.grad.item(), scaler.get_scale() / 8.0))
    assert after[0] == (0.75, 1.0, 1.0) and after[1][0] == 0.75  # the same step
    assert after[2][0] == 1.0 and "skips the step if a gradient is inf or NaN" in rows[2][2]
    words = {0.5: "halves", 2.0: "doubles"}
    assert rows[3][2].startswith(
        f"{words[after[2][2]]} the scale after a skip, "
        f"{words[after[1][2]]} it after enough steps without one"
    )


def gradient(formula, *at):
    x = torch.tensor(at, requires_grad=True)
    formula(x).sum().backward()
    return x.grad


def check_fixes(rows):
    overflow, softmax, log, div, backward, _, norm, _ = rows[1:]
    assert overflow[1] == f"beyond {torch.finfo(F16).max:,.0f}"
    large = torch.full((1, 4, 4), 256.0)
    half = large.half()
    with torch.autocast("cpu", dtype=F16):
        made = [large @ large, conv1d(large, large), 200 * half + 200 * half, half * half]
        for op in code_names(overflow[0].partition("on a CPU also")[2]):
            made.append(getattr(torch, op)(half, *[2.0] * (op == "pow")))
            assert op in REFERENCE["cuda"]["fp32"]  # so on a CPU alone
    assert len(made) == 6 and all(one.dtype == F16 and one.isinf().all() for one in made)
    assert torch.full((2,), -INF).softmax(0).isnan().all() and "masked" in softmax[1]
    scores = torch.tensor([-40.0, 0.0], dtype=F16)
    assert scores.softmax(0).log()[0] == -INF
    safe = {"log_softmax": log_softmax(scores, 0)}
    safe["binary_cross_entropy_with_logits"] = bce_with_logits(scores, torch.ones_like(scores))
    assert all(safe[name].isfinite().all() for name in code_names(log[2]))
    lost, held = (re.search(f"{words} (\\S+)", div[2])[1] for words in ("a floor of", "bf16 holds"))
    assert torch.tensor(float(lost)).half() == 0 < torch.tensor(float(held)).bfloat16()
    assert (1 / torch.zeros(1, dtype=F16).clamp_min(float(lost))).isinf()
    assert "own `norm` has a derivative of 0 at 0" in backward[1]
    assert gradient(torch.norm, 0.0) == 0 and gradient(torch.linalg.vector_norm, 0.0) == 0
    assert gradient(lambda x: x.square().sum().sqrt(), 0.0).isnan()
    assert gradient(lambda x: x.pow(0.5), 0.0).isinf()
    assert gradient(lambda x: torch.where(x > 0, x.sqrt(), 0.0), 0.0).isnan()
    inside = code_names(backward[2])[0]
    fixed = gradient(lambda x: torch.where(x > 0, eval(inside, globals(), {"x": x}), 0.0), 0.0, 4.0)
    assert fixed.tolist() == [0.0, 0.25]
    layer = nn.BatchNorm1d(1)
    layer(torch.tensor([[INF], [1.0]]))  # and no optimizer stepped
    assert not getattr(layer, code_names(norm[0])[0]).isfinite()
