"""What AMP should buy: the ops are those that really run, the arithmetic is Amdahl's,
and the parts add up.
"""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn

from amp_course.kit.measure import Timing
from amp_course.loop.recipe import AMP_BF16, FP32
from amp_course.loop.workloads import char_gpt, digits_resnet, simple_net
from amp_course.speed import predict_speedup
from amp_course.speed.counting import CAST, MATMUL, OTHER, OpCall, Replay, count_ops, totals
from amp_course.speed.faults import page_faults, seconds_per_fault
from amp_course.speed.figures import prediction_figure
from amp_course.speed.prediction import Prediction, count_on_fakes, predict_workload
from amp_course.speed.pricing import PricedCall, Pricer, Side

CPU = torch.device("cpu")


def priced(kind, seconds, dtype=torch.float32):
    return PricedCall(OpCall("aten.mm", kind, dtype, 1, 1, ()), seconds)


def side(seconds, matmul, cast, other, faults=0.0):
    return Side(
        Timing((seconds,)),
        faults,
        (priced(MATMUL, matmul), priced(CAST, cast), priced(OTHER, other)),
    )


def test_ceiling_prediction_and_gap_by_hand():
    found = Prediction("by hand", AMP_BF16, side(10, 6, 0, 2), side(8, 2, 1, 3, faults=0.5))
    assert (found.share, found.factor) == (pytest.approx(0.6), pytest.approx(3))
    assert found.ceiling == pytest.approx(float(1 / (1 - Fraction(6, 10) + Fraction(6, 10) / 3)))
    assert found.predicted_seconds == pytest.approx(10 - 8 + 6)
    assert found.predicted == pytest.approx(10 / 8)
    assert found.measured == pytest.approx(10 / 8) and found.error == pytest.approx(0)
    gap = found.gap()
    parts = {"casts": 1, "other ops": 1, "memory": 0.5, "unexplained": 8 - 6 - 2.5}
    assert gap == pytest.approx(parts)
    assert 10 / found.ceiling + sum(gap.values()) == pytest.approx(8)
    assert found.to_dict()["seconds"] == {"fp32": 10, "amp": 8}


def test_on_a_gpu_the_longer_of_work_and_queue_decides():
    # In fp32 the GPU works for 10 s and the CPU queues for 4; AMP has two ops more, and each takes
    # half a second to start.
    fp32, amp = replace(side(10, 6, 0, 2), queueing=4.0, launch=0.5), side(5, 2, 0.5, 1)
    amp = replace(amp, priced=(*amp.priced, priced(CAST, 0.1), priced(CAST, 0.1)))
    found = Prediction("by hand", AMP_BF16, fp32, amp)
    assert found.queueing == pytest.approx(5)
    assert found.predicted_seconds == pytest.approx(10 - 8 + 3.7)
    assert found.gap()["launches"] == 0
    quick = replace(found, amp=replace(amp, priced=(priced(MATMUL, 0.1), *amp.priced[1:])))
    assert quick.predicted_seconds == pytest.approx(5)  # the GPU alone would take 10 − 8 + 1.8
    assert quick.gap()["launches"] == pytest.approx(1.2)


@pytest.mark.parametrize("workload", [simple_net, digits_resnet, char_gpt])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=["fp32", "amp"])
def test_fakes_call_the_ops_that_really_run(workload, dtype):
    sizes = {"width": 32, "batch_size": 8} if workload is simple_net else {"batch_size": 2}
    session = workload(CPU, **sizes).start(FP32)
    stepper, (inputs, targets) = session.stepper, next(session.batches)
    weights = [*stepper.model.parameters()]
    before = [parameter.clone() for parameter in weights]
    fake = count_on_fakes(stepper.model, stepper.loss_fn, inputs, targets, CPU, dtype)
    assert all(map(torch.equal, before, weights)) and all(one.grad is None for one in weights)
    with count_ops() as real:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
            loss = stepper.loss_fn(stepper.model(inputs), targets)
        loss.backward()
    ran, counted = (
        [(call.op, call.kind, call.dtype, call.flops, call.shapes) for call in counter.calls]
        for counter in (real, fake)
    )
    assert counted == ran


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
    assert all(one.seconds > 0 for one in found)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_op_that_cannot_be_called_again_is_free():
    def refuse(*args):
        raise RuntimeError("not twice")

    with count_ops() as counter:
        torch.ones(4) + 1
    counter.replays[-1] = Replay(refuse, (), {})
    pricer = Pricer(counter, CPU)
    pricer.run(0.01)
    *others, last = pricer.prices()
    assert last.seconds == 0 and all(one.seconds > 0 for one in others)


def test_the_whole_on_a_small_net():
    found = predict_workload(simple_net(CPU, 32, 8), AMP_BF16, CPU, seconds=0.4)
    assert 0 < found.share <= 1 and found.factor > 0 and found.predicted > 0
    assert len(found.fp32.timing.samples) >= 2 and len(found.amp.timing.samples) >= 2
    whole = found.fp32.seconds / found.ceiling + sum(found.gap().values())
    assert found.amp.seconds == pytest.approx(whole)
    fp32, amp = ([one.call.kind for one in side.priced] for side in (found.fp32, found.amp))
    assert CAST in amp and CAST not in fp32


# ── a net of one's own ──

BATCH, WIDTH, CLASSES = 8, 16, 4


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))


def own(model=None, loss_fn=nn.functional.cross_entropy, batch=None, **more):
    batch = (torch.randn(BATCH, WIDTH), torch.arange(BATCH) % CLASSES) if batch is None else batch
    return predict_speedup(model or two_layers(), loss_fn, batch, **{"seconds": 0.05, **more})


def test_the_flops_of_an_own_net_are_those_of_its_formula():
    """A linear layer of i × o takes 2bio FLOPs forward and twice that backward,
    but the first one has no input to train.
    """
    found = own()
    first, last = 2 * BATCH * WIDTH * WIDTH, 2 * BATCH * WIDTH * CLASSES
    for one, dtype in ((found.fp32, torch.float32), (found.amp, torch.bfloat16)):
        calls = [priced.call for priced in one.priced]
        assert totals(calls, MATMUL).flops == 2 * first + 3 * last
        assert {call.dtype for call in calls if call.kind == MATMUL} == {dtype}


def test_an_own_model_stays_as_it_was():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)
            self.drop = nn.Dropout(0.5)
            self.last, self.lengths = nn.Linear(WIDTH, CLASSES), []

        def forward(self, x):
            self.lengths.append(len(x))
            if x.sum().item() > 1e9:  # a read, which fake tensors could not answer
                x = x / 2
            return self.last(self.drop(self.norm(self.first(x))))

    model = Odd().train()
    model.norm.eval()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 2.0)
    batch = (torch.randn(BATCH, WIDTH), torch.arange(BATCH) % CLASSES)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    copies, random = [one.clone() for one in batch], torch.get_rng_state()
    found = own(model, batch=batch)
    assert found.title == "Odd" and found.predicted > 0
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in state.items())
    assert all((parameter.grad == 2.0).all() for parameter in model.parameters())
    assert model.training and model.drop.training and not model.norm.training and not model.lengths
    assert torch.equal(random, torch.get_rng_state()) and all(map(torch.equal, copies, batch))
    with torch.no_grad():
        assert own(model, batch=batch).predicted > 0


def test_a_model_may_take_two_inputs():
    class Two(nn.Bilinear):
        def forward(self, a, b):
            return super().forward(a, b)

    batch = (torch.randn(3, WIDTH), torch.randn(3, WIDTH), torch.arange(3))
    assert own(Two(WIDTH, WIDTH, CLASSES), batch=batch).predicted_seconds > 0


@pytest.mark.parametrize(
    "changed, error, words",
    [
        ({"model": "net"}, TypeError, "pass the torch.nn.Module itself"),
        ({"loss_fn": torch.tensor(1.0)}, TypeError, "pass a function of outputs and targets"),
        ({"batch": torch.ones(2, 2)}, TypeError, r"a pair of tensors, \(inputs, targets\)"),
        ({"batch": (torch.ones(2, 2), [1, 2])}, TypeError, "a pair of tensors"),
        ({"model": nn.Flatten()}, ValueError, "no parameter that requires a gradient"),
        ({"model": nn.Linear(WIDTH, 4).half()}, ValueError, "in float16: AMP starts from float32"),
        ({"dtype": torch.float32}, ValueError, "give torch.bfloat16 or torch.float16"),
        (
            {"model": nn.Linear(3, 3)},
            ValueError,
            "in float32 raised RuntimeError: .*their own first",
        ),
        ({"loss_fn": lambda out, target: out}, ValueError, "grad can be implicitly created only"),
    ],
)
def test_what_cannot_be_predicted_is_refused_with_its_reason(changed, error, words):
    with pytest.raises(error, match=words):
        own(**changed)


def test_a_loss_that_reads_the_nets_own_weights_trains_neither():
    net = two_layers()
    net[0].weight.grad = torch.ones(WIDTH, WIDTH)

    def decayed(out, target):
        decay = sum(weight.square().sum() for weight in net.parameters())
        return nn.functional.cross_entropy(out, target) + 1e-4 * decay

    own(net, decayed)
    assert torch.equal(net[0].weight.grad, torch.ones(WIDTH, WIDTH)) and net[1].weight.grad is None


def test_a_model_that_cannot_be_copied_is_refused():
    model = two_layers()
    model.kept = model(torch.randn(2, WIDTH))
    with pytest.raises(ValueError, match=r"could not be copied .*detached first"):
        own(model)


@pytest.mark.parametrize(
    "fp32, amp, seconds",
    [
        # alone, the ops take longer than the step: it was 10 − 15 + 3
        ((10, 12, 0, 3), (8, 1, 1, 1), 10 * 3 / 15),
        ((10, 100, 0, 0), (8, 0.001, 0, 0), 0.0001),
        ((10, 0, 0, 0), (8, 0, 0, 0), 10),
        ((10, 6, 0, 2), (8, 2, 1, 3), 8),
    ],
)
def test_no_prediction_is_0_or_less(fp32, amp, seconds):
    found = Prediction("by hand", AMP_BF16, side(*fp32), side(*amp))
    assert found.predicted_seconds == pytest.approx(seconds) and found.predicted > 0
    assert found.ceiling > 0


def test_a_prediction_in_words_and_on_a_busy_machine():
    found = Prediction("by hand", AMP_BF16, side(10, 6, 0, 2), side(5, 2, 1, 3, faults=0.5))
    assert "should make a step 1.25 times as fast" in str(found)
    assert "measured: 2.00 times as fast (10.0 s, then 5.00 s)" in str(found)
    uneven = replace(found, amp=replace(found.amp, timing=Timing((5.0, 9.0, 12.0))))
    assert "measured: no difference that this machine can show (10.0 s, then 9.00 s)" in str(uneven)
    busy = replace(found, amp=replace(found.amp, timing=Timing((5.0,), 0.5)))
    assert str(busy).startswith("by hand: This machine was too busy to tell")
    assert "times as" not in str(busy)
    assert "too busy to tell" in prediction_figure([busy]).axes[0].get_title(loc="left")


def test_touching_new_memory_is_counted():
    before = page_faults()
    torch.ones(2**24)
    assert page_faults() >= before
    assert 0 <= seconds_per_fault() < 1e-3
