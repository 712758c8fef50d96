"""What the exercises of chapter 04 say about torch, next to torch:
the twelve lines, the op lists, the limits of sigmoid.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from amp_course.autocast.exercises import FP32_OPS, LOWER_OPS, WIDEST_OPS, safe_function
from amp_course.autocast.exercises.mini_autocast import MiniAutocast
from amp_course.autocast.exercises.predict_dtypes import LINES, run_lines
from amp_course.kit.models import CharGPT, DigitsResNet, SimpleNet

ROOT = Path(__file__).parents[2]
LOW = [torch.bfloat16, torch.float16]


def test_each_tempting_prediction_is_wrong():
    truth = run_lines()
    for name, (_, tempting) in LINES.items():
        assert truth[name] not in tempting and len(tempting) >= 2, name


def test_the_blank_shows_the_lines_that_the_check_runs():
    book = json.loads((ROOT / "exercises" / "04_autocast.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in book["cells"]]
    (blank,) = [source for source in sources if 'predict_dtypes["mm"]' in source]
    shown = dict(re.findall(r'^predict_dtypes\["(.+?)"\] = \.\.\.  # (.+)$', blank, re.MULTILINE))
    assert shown == {name: code for name, (code, _) in LINES.items()}


@pytest.mark.parametrize("dtype", LOW)
def test_the_op_lists_are_torchs(dtype):
    a, i = torch.randn(4, 4), torch.arange(4)
    h = a.to(dtype)
    odd = {F.conv2d: (a[None, None],) * 2, torch.einsum: ("ij,jk->ik", [a, a]), torch.prod: (h,)}
    odd |= dict.fromkeys((torch.bmm, Tensor.bmm), (a[None], a[None]))
    odd |= dict.fromkeys((torch.addmm, F.scaled_dot_product_attention), (a, a, a))
    odd |= dict.fromkeys((F.cross_entropy, F.nll_loss), (h, i))
    odd |= dict.fromkeys((torch.index_copy, Tensor.index_copy), (h, 0, i[:1], a[:1]))
    for ops, usual, wanted in (
        (LOWER_OPS, (a, a), dtype),
        (FP32_OPS, (h, h), torch.float32),
        (WIDEST_OPS, ([a, h],), torch.float32),
    ):
        for op in ops:
            with torch.autocast("cpu", dtype=dtype):
                assert op(*odd.get(op, usual)).dtype == wanted, op


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (SimpleNet(16), torch.randn(4, 16)),
        (DigitsResNet(4), torch.rand(4, 1, 8, 8)),
        (CharGPT(11, context=8, layers=2, heads=2, width=16), torch.randint(0, 11, (3, 8))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_mini_autocast_agrees_with_torchs_module_by_module(model: nn.Module, inputs: Tensor):
    found: list[torch.dtype] = []
    for module in model.modules():
        module.register_forward_hook(lambda m, args, out: found.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(inputs)
    theirs = found.copy()
    with MiniAutocast(torch.bfloat16, LOWER_OPS, FP32_OPS, WIDEST_OPS):
        model(inputs)
    assert found == theirs * 2 and torch.bfloat16 in theirs


def test_the_check_of_safe_function_puts_cudas_autocast_back():
    safe_function.check(lambda x, c: (x[:, None] - c).square().sum(-1))
    assert not torch.is_autocast_enabled("cuda")


def test_where_sigmoid_and_bceloss_saturate():
    for dtype, value in ((torch.float32, 17), (torch.float64, 37)):
        assert (torch.arange(99, dtype=dtype).sigmoid() < 1).sum() == value
    for dtype, finite in ((torch.float32, True), (torch.bfloat16, True), (torch.float16, False)):
        logit = torch.tensor([50.0], dtype=dtype, requires_grad=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.binary_cross_entropy(torch.sigmoid(logit), torch.tensor([0.0]))
        loss.backward()
        assert loss == 100 and (logit.grad == 0 if finite else logit.grad.isnan())
