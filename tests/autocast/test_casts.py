"""Which casts are autocast's: `trace` against a count that knows nothing of profilers or operators.

The oracle runs the same call without `trace`, once in a region and once without autocast, and
counts the casts that really ran. The model's own casts run both times, so the difference is
autocast's.
"""

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from amp_course.autocast import TraceError, trace
from amp_course.autocast.ops import OPS
from amp_course.kit.models import SimpleNet

BF16 = torch.bfloat16


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and result.dtype != args[0].dtype:
            self.made.append(result.nbytes)
        return result


class Does(nn.Module):
    """Has one weight, and calls a function with it."""

    def __init__(self, function):
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.rand(4, 4)), function

    def forward(self, *inputs):
        return self.function(self.weight, *inputs)


def inserted(model, inputs, dtype=BF16):
    """The oracle: (number, bytes) of the casts that run with autocast and not without."""
    counted = []
    for on in (True, False):
        with (
            torch.random.fork_rng(),
            torch.autocast("cpu", dtype=dtype, enabled=on),
            Counted() as found,
        ):
            model(*[one.clone() if isinstance(one, torch.Tensor) else one for one in inputs])
        counted.append((len(found.made), sum(found.made)))
    (many, large), (own, own_bytes) = counted
    return many - own, large - own_bytes


def x():
    return torch.rand(4, 4)


def in_place(w, a):
    a = a.clone()
    a += a @ w
    return a.mul_(2)


def in_place_product(w, a):
    return a.to(BF16).addmm_(w.to(BF16), w.to(BF16))


def with_out(w, a):
    return torch.mm(w.detach(), a, out=torch.empty(4, 4))


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, a):
        return w.float() @ a.to(torch.float64).float()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


WAYS = {  # how a cast can come about → the call, and how many casts autocast inserts
    "operator": (lambda w, a: a @ w, 2),
    "method": (lambda w, a: a.matmul(w), 2),
    "functional": (lambda w, a: F.linear(a, w), 2),
    "keywords": (lambda w, a: torch.matmul(input=a, other=w), 2),
    "dispatcher": (lambda w, a: torch.ops.aten.mm(a, w), 2),
    "einsum": (lambda w, a: torch.einsum("ij,jk->ik", a, w), 2),
    "multi_dot": (lambda w, a: torch.linalg.multi_dot([a, w, a]), 3),  # one in between is low
    "power operator": (lambda w, a: (a @ w) ** 2, 2),
    "in place": (in_place, 2),
    "in-place product": (in_place_product, 0),
    "out=": (with_out, 0),
    "own casts around": (lambda w, a: (a.double().float() @ w).double().half(), 2),
    "own casts of both": (lambda w, a: a.bfloat16() @ w.bfloat16(), 0),
    "type_as": (lambda w, a: a.type_as(w.double()), 0),
    "softmax, dtype= low": (lambda w, a: torch.softmax(a, -1, dtype=BF16) @ w.bfloat16(), 0),
    "sum, dtype=": (lambda w, a: a.sum(dtype=torch.float64), 0),
    "promotion": (lambda w, a: a.bfloat16() + w, 0),
    "widest": (lambda w, a: torch.cat([a.bfloat16(), w]), 1),
    "to fp32": (lambda w, a: F.mse_loss(a.bfloat16(), w.bfloat16()), 2),
    "to fp32 in C++": (lambda w, a: F.cross_entropy(a.bfloat16(), torch.arange(4)), 1),
    "a Function": (lambda w, a: Function.apply(w, a), 2),
    "island": (
        lambda w, a: torch.autocast("cpu", enabled=False)(lambda: a @ w.double().float())(),
        0,
    ),
    "vmap": (lambda w, a: torch.func.vmap(lambda row: row @ w)(a), 2),
    "no_grad": (lambda w, a: torch.no_grad()(lambda: a @ w)(), 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
def test_sees_every_cast_of_autocasts_and_no_other_however_it_came_about(way, mode):
    function, expected = WAYS[way]
    model = Does(function)
    with mode():
        traced = trace(model, x(), backward=False)
        if mode is torch.enable_grad:
            assert (len(traced.casts()), traced.cast_bytes()) == inserted(model, (x(),))
    assert len(traced.casts()) == expected


class Calls(nn.Module):
    def __init__(self, op):
        super().__init__()
        self.op = op

    def forward(self, *inputs):
        arguments, options = self.op.build(lambda values: values, "cpu")
        return self.op.function(*arguments, **options)


# These cast for themselves when their inputs are low: attention in float32, where no fused kernel
# serves.
_CAST_INSIDE = {"scaled_dot_product_attention"}


@pytest.mark.parametrize("name", [name for name in OPS if name not in _CAST_INSIDE])
def test_counts_the_casts_of_every_op_that_the_policy_knows(name):
    model = Calls(OPS[name])
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = inserted(model, ())
        except Exception as error:
            with pytest.raises(TraceError) as caught:
                trace(model, device_type="cpu")
            assert type(caught.value.__cause__) is type(error)
            return
        traced = trace(model, device_type="cpu")
    assert (len(traced.casts()), traced.cast_bytes()) == expected


def test_says_who_made_each_cast_and_which_operator_was_called():
    def function(w, a):
        return torch.softmax(a.half() @ w.float(), -1, dtype=torch.float64).type_as(a)

    traced = trace(Does(function), x(), backward=False)
    own = [op for op in traced if op.cast and op.call != "matmul"]
    made_by = [("to", "model"), ("softmax", "op"), ("type_as", "model")]
    assert [(op.call, op.cast) for op in own] == made_by
    # Which argument C++ casts first is the compiler's choice.
    assert {op.source for op in own} == {"activation"}
    assert {op.source for op in traced.casts()} == {"activation", "weight"}
    assert {op.call for op in traced.casts()} == {"matmul"}


def test_attention_lowers_its_inputs_and_casts_up_inside_itself():
    q = torch.rand(1, 2, 4, 8)
    model = Does(lambda w, q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5))
    traced = trace(model, q, backward=False)
    assert [op.outputs for op in traced.casts()] == [(BF16,)] * 3
    assert {op.inputs for op in traced if op.cast == "op"} >= {(BF16,)}


def test_inference_mode_runs_what_it_runs_unwatched():
    """There composites such as einsum arrive whole, and their parts still have to be cast."""

    def function(w, a):
        return torch.einsum("ij,jk->ik", a, a), F.cross_entropy(a @ a, torch.arange(4))

    model = Does(function)
    with torch.inference_mode():
        with torch.autocast("cpu", dtype=BF16):
            expected = tuple(one.dtype for one in model(x()))
        traced = trace(model, x())
    assert [op.op for op in traced if op.op in ("bmm", "mm")] == ["bmm", "mm"]
    assert expected == (BF16, torch.float32) == traced["(model)"].outputs
    assert len(traced.casts()) == 2 + 2 + 1


def checkpointed(reentrant):
    from torch.utils.checkpoint import checkpoint

    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 4)

        def forward(self, a):
            return checkpoint(self.line, a, use_reentrant=reentrant)

    return Checked()


def test_casts_of_a_checkpoints_second_forward_pass_are_in_the_total():
    traced = trace(checkpointed(reentrant=False), x())
    # weight, bias and input, each time in a region of its own
    assert len(traced.casts()) == traced["line"].casts == 6 and len(traced.recomputed) == 3
    assert traced.cast_bytes() == 2 * 2 * (16 + 4 + 16) == traced["line"].cast_bytes
    assert {op.phase for op in traced.recomputed} == {"backward"} and traced["line"].back_casts == 2
    assert "6 casts inserted, 144 bytes (3 of them while a checkpoint recomputed)" in str(traced)
    assert trace(nn.Linear(4, 4), x()).recomputed == []


def test_reentrant_checkpoints_are_named_and_the_forward_pass_is_still_shown():
    model = checkpointed(reentrant=True)
    traced = trace(model, x().requires_grad_())
    assert len(traced.casts()) == 3 and not traced.has_backward
    assert "use_reentrant=False" in traced.notes[0] and model.line.weight.grad is None


@pytest.mark.parametrize("how", ["torch.compile", "module.compile", "inside", "forward"])
def test_a_compiled_model_is_traced_uncompiled_and_said_to_be(how):
    net = SimpleNet(8)
    model = net
    if how == "torch.compile":
        model = torch.compile(net, backend="eager")
    elif how == "module.compile":
        net.compile(backend="eager")
    elif how == "forward":
        net.linear2.forward = torch.compile(net.linear2.forward, backend="eager")
    else:
        net.linear2 = torch.compile(net.linear2, backend="eager")
    traced = trace(model, torch.rand(2, 8))
    assert "compiled" in traced.notes[0] and traced.name == "SimpleNet" and traced.has_backward
    assert len(traced.casts()) == 7
    assert {row.path for row in traced.modules} >= {"linear1", "linear2", "linear3"}
    assert trace(SimpleNet(8), torch.rand(2, 8)).notes == ()


def test_a_loss_that_raises_is_not_put_down_to_the_model():
    with pytest.raises(
        TraceError, match="the loss, called with what SimpleNet returned, raised ZeroDivisionError"
    ):
        trace(SimpleNet(8), torch.rand(2, 8), loss=lambda output: 1 / 0)


def test_inside_a_profiler_it_says_so_and_the_profiler_goes_on():
    with torch.autograd.profiler.profile() as profile:
        with pytest.raises(RuntimeError, match="a profiler is running"):
            trace(SimpleNet(8), torch.rand(2, 8))
        torch.ones(2) + 1
    assert "aten::add" in {event.name for event in profile.function_events}
    assert trace(SimpleNet(8), torch.rand(2, 8)).casts()
    assert not torch.autograd._profiler_enabled()


def test_labels_of_the_models_own_do_not_confuse_it():
    def function(w, a):
        with torch.profiler.record_function("aten::matmul"):
            y = a @ w
            return y.float() + w.half()

    traced = trace(Does(function), x(), backward=False)
    assert [op.cast for op in traced if op.cast] == ["autocast", "autocast", "model", "model"]
