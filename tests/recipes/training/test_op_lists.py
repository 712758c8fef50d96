"""What runs in which dtype under custom lists, recorded by a mode below the lists."""

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from amp_course.recipes import AMP_BF16, O1, O2
from amp_course.recipes.training.op_lists import OpLists, checked_ops, op_name


class RecordedOps(TorchFunctionMode):
    """Record the dtype of the first tensor that each op gets, and if autocast is on then."""

    def __init__(self):
        super().__init__()
        self.ops = {}

    def __torch_function__(self, func, types, args=(), kwargs=None):
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        if tensors:
            self.ops[op_name(func)] = (tensors[0].dtype, torch.is_autocast_enabled("cpu"))
        return func(*args, **(kwargs or {}))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.second(torch.softmax(self.first(x), -1))


def ops_of(recipe):
    def loss_fn(outputs, targets):
        return outputs.float().square().mean()

    session = recipe.prepare(Net(), lambda params: torch.optim.SGD(params, lr=0.1), loss_fn)
    with RecordedOps() as recorded:
        loss = session.step(torch.randn(5, 4), torch.zeros(5))
    assert loss.isfinite()
    assert all(p.isfinite().all() for p in session.model.parameters())
    return recorded.ops


def test_fp32_ops_run_in_fp32_with_autocast_off():
    assert ops_of(O1(fp32_ops=["linear"]))["linear"] == (torch.float32, False)
    assert ops_of(O1())["linear"][1]  # autocast is on, and will cast


def test_lower_ops_run_in_the_low_dtype():
    assert ops_of(AMP_BF16(lower_ops=["softmax"]))["softmax"] == (torch.bfloat16, False)
    assert ops_of(O1(lower_ops=("softmax",)))["softmax"] == (torch.float16, False)


def test_lists_reach_the_loss():
    assert ops_of(AMP_BF16(lower_ops=["square"]))["square"] == (torch.bfloat16, False)


def test_half_model_runs_a_listed_op_in_fp32_and_goes_on_in_half():
    ops = ops_of(O2(fp32_ops=["softmax"]))
    assert ops["softmax"][0] is torch.float32
    assert ops["linear"][0] is torch.float16


def test_an_fp32_op_gives_another_result_than_autocast():
    x, w = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)), torch.ones(2, 64)
    exact = x @ w.T
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = nn.functional.linear(x, w)
        with OpLists(["linear"], [], "cpu", torch.bfloat16):
            listed = nn.functional.linear(x, w)
            matmul = x @ w.T  # not listed
        with OpLists(["matmul"], [], "cpu", torch.bfloat16):
            operator = x @ w.T
    assert plain.dtype is matmul.dtype is torch.bfloat16
    assert torch.equal(listed, exact) and torch.equal(operator, exact)


def test_names_that_work_in_place_are_unknown():
    assert checked_ops(
        "fp32_ops", ("softmax", "layer_norm", "conv2d", "scaled_dot_product_attention", "matmul")
    )
    with pytest.raises(ValueError, match="no op 'add_'"):
        checked_ops("fp32_ops", ["add_"])
