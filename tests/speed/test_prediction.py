"""What AMP should buy: the ops are those that really run, the arithmetic is Amdahl's, and the parts add up."""

from fractions import Fraction

import pytest
import torch
from torch import nn

from amp_course.kit.measure import Timing
from amp_course.loop.recipe import AMP_BF16, FP32
from amp_course.loop.workloads import char_gpt, digits_resnet, simple_net
from amp_course.speed.counting import CAST, MATMUL, OTHER, OpCall, Replay, count_ops, fake_tensors, totals
from amp_course.speed.faults import page_faults, seconds_per_fault
from amp_course.speed.prediction import Prediction, Side, count_on_fakes, predict_speedup
from amp_course.speed.pricing import PricedCall, Pricer

CPU = torch.device("cpu")


def priced(kind, seconds, dtype=torch.float32):
    return PricedCall(OpCall("aten.mm", kind, dtype, 1, 1, ()), seconds)


def side(seconds, matmul, cast, other, faults=0.0):
    return Side(Timing((seconds,)), faults, (priced(MATMUL, matmul), priced(CAST, cast), priced(OTHER, other)))


def test_ceiling_prediction_and_gap_by_hand():
    found = Prediction("by hand", AMP_BF16, side(10, 6, 0, 2), side(8, 2, 1, 3, faults=0.5))
    assert (found.share, found.factor) == (pytest.approx(0.6), pytest.approx(3))
    assert found.ceiling == pytest.approx(float(1 / (1 - Fraction(6, 10) + Fraction(6, 10) / 3)))
    assert found.predicted_seconds == pytest.approx(10 - 8 + 6) and found.predicted == pytest.approx(10 / 8)
    assert found.measured == pytest.approx(10 / 8) and found.error == pytest.approx(0)
    gap = found.gap()
    assert {name: pytest.approx(value) for name, value in gap.items()} == {
        "casts": 1,
        "other ops": 1,
        "memory": 0.5,
        "unexplained": 8 - 6 - 2.5,
    }
    assert 10 / found.ceiling + sum(gap.values()) == pytest.approx(8)
    assert found.to_dict()["seconds"] == {"fp32": 10, "amp": 8}


@pytest.mark.parametrize("workload", [simple_net, digits_resnet, char_gpt], ids=lambda make: make.__name__)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "amp"])
def test_fakes_call_the_ops_that_really_run(workload, dtype):
    session = (simple_net(CPU, 32, 8) if workload is simple_net else workload(CPU, batch_size=2)).start(FP32)
    stepper, (inputs, targets) = session.stepper, next(session.batches)
    before = [parameter.clone() for parameter in stepper.model.parameters()]
    fake = count_on_fakes(stepper.model, stepper.loss_fn, inputs, targets, CPU, dtype)
    assert all(torch.equal(old, new) for old, new in zip(before, stepper.model.parameters(), strict=True))
    assert all(parameter.grad is None for parameter in stepper.model.parameters())
    with count_ops() as real:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
            loss = stepper.loss_fn(stepper.model(inputs), targets)
        loss.backward()
    assert [(call.op, call.kind, call.dtype, call.flops, call.shapes) for call in fake.calls] == [
        (call.op, call.kind, call.dtype, call.flops, call.shapes) for call in real.calls
    ]


def test_every_op_of_a_step_can_be_priced_by_itself():
    session = char_gpt(CPU, batch_size=1).start(FP32)
    stepper, batch = session.stepper, next(session.batches)
    with count_ops() as counter:
        stepper.step(*batch)
    state = torch.get_rng_state()
    pricer = Pricer(counter, CPU)
    pricer.run(0.05)
    found = pricer.prices()
    assert [one.call for one in found] == counter.calls
    assert not [one for one in found if one.error] and all(one.seconds > 0 for one in found)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_op_that_cannot_be_called_again_is_free_and_says_why():
    def refuse(*args):
        raise RuntimeError("not twice\nand more")

    with count_ops() as counter:
        torch.ones(4) + 1
    counter.replays[-1] = Replay(refuse, (), {})
    pricer = Pricer(counter, CPU)
    pricer.run(0.01)
    *_, last = pricer.prices()
    assert (last.seconds, last.error) == (0.0, "not twice")


def test_the_whole_on_a_small_net():
    found = predict_speedup(simple_net(CPU, 32, 8), AMP_BF16, CPU, seconds=0.4)
    assert 0 < found.share <= 1 and found.factor > 0 and found.predicted > 0
    assert len(found.fp32.timing.samples) >= 2 and len(found.amp.timing.samples) >= 2
    assert found.amp.seconds == pytest.approx(found.fp32.seconds / found.ceiling + sum(found.gap().values()))
    assert (
        totals([one.call for one in found.amp.priced], CAST).kernels
        > 0
        == totals([one.call for one in found.fp32.priced], CAST).kernels
    )


def test_a_net_of_any_size_fits_on_fakes():
    with fake_tensors():
        model, x = nn.Linear(2**17, 2**17), torch.randn(8, 2**17)  # 64 GB of weights
        with count_ops() as counter:
            model(x)
    assert totals(counter.calls).flops == 2 * 8 * 2**34


def test_touching_new_memory_is_counted():
    before = page_faults()
    torch.ones(2**24)
    assert page_faults() >= before
    assert 0 <= seconds_per_fault() < 1e-3
