"""Compiled and scripted code is traced uncompiled, and compiled again afterwards."""

import warnings

import pytest
import torch
from torch import nn

from amp_course.autocast import trace
from amp_course.kit.compiled import uncompiled_run
from amp_course.kit.models import SimpleNet


def test_scripted_models_are_traced():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated in newer versions
        scripted = torch.jit.script(SimpleNet(8))
        assert len(trace(scripted, torch.randn(2, 8)).casts()) == 7


class Calls(nn.Module):
    """Multiplies by its weight, with any function or with its own compiled method."""

    def __init__(self, product=None):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4))
        self.product = product or self.method

    @torch.compile(backend="eager")
    def method(self, x, w):
        return x @ w

    def forward(self, x):
        return self.product(x, self.weight)


def plain_product(x, w):
    return x @ w


@pytest.mark.parametrize("how", ["function", "method", "loss", "in the backward pass"])
def test_compiled_code_that_is_no_module_is_traced_uncompiled_and_said_to_be(how):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            return x @ w

        @staticmethod
        def backward(ctx, gradient):
            return compiled(gradient, torch.eye(4, dtype=gradient.dtype)), None

    def of_loss(output):
        return output.mean()

    compiled = torch.compile(plain_product, backend="eager")
    product = {
        "function": compiled,
        "method": None,
        "in the backward pass": Square.apply,
    }.get(how, plain_product)
    loss = torch.compile(of_loss, backend="eager") if how == "loss" else None
    x = torch.rand(2, 4, requires_grad=True)
    traced = trace(Calls(product), x, loss=loss)
    assert [note for note in traced.notes if "ran uncompiled" in note] == list(traced.notes) != []
    if how != "in the backward pass":
        assert [(op.op, op.cast) for op in traced.of("(model)")] == [
            (op.op, op.cast) for op in trace(Calls(plain_product), x).of("(model)")
        ]
    assert trace(Calls(plain_product), x).notes == ()


def test_what_is_kept_from_the_compiler_is_not_taken_for_compiled_and_compiling_works_afterwards():
    excluded, sizes = torch.compiler.disable(plain_product), []

    def backend(graph, inputs):
        sizes.append(len(inputs))
        return graph.forward

    x, compiled = torch.rand(2, 4), torch.compile(plain_product, backend=backend)
    assert trace(Calls(excluded), x).notes == () != trace(Calls(compiled), x).notes
    assert sizes == []
    compiled(x, torch.rand(4, 4))
    assert sizes == [2]


def test_compiled_code_is_compiled_again_though_the_outer_of_two_watches_ends_first():
    graphs = []

    def backend(graph, inputs):
        graphs.append(1)
        return graph.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    runs = [uncompiled_run(), uncompiled_run()]
    called = [run.__enter__() for run in runs]
    compiled(torch.ones(1))
    for run in runs:
        run.__exit__(None, None, None)
    assert not graphs and all(one() for one in called)
    compiled(torch.ones(1))
    assert graphs == [1]
