"""`first_nonfinite` and `doctor` on steps whose inf and NaN come from the data, or do no harm."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from amp_course.debugging.nonfinite import first_nonfinite
from amp_course.doctor import doctor
from tests.doctor.training import SmallTraining


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_does_no_harm(fused):
    training = SmallTraining(scale=2.0**22, fused=fused)
    found = training.first(training.scaled)
    assert found.first is None and len(found.caught) >= 1
    assert training.examine(training.scaled).names == ()


def test_an_overflow_in_the_forward_pass_is_named_though_the_scaler_skips_the_step():
    training = SmallTraining()
    nn.init.constant_(training.model[2].bias, 12.0)

    def step(x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            area = torch.exp(training.model(x))  # inf from 11.1 on, hidden from the loss
            loss = (1 - 100 / (area + 100)).mean()
        training.scaler.scale(loss).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()
        return loss.detach()

    found = training.first(step)
    assert (found.first.op, found.first.phase) == ("exp", "forward")
    assert found.reached(found.first) == (("scaler", "the GradScaler"),)


def test_a_loss_that_only_its_scale_makes_infinite_does_no_harm():
    training = SmallTraining(scale=2.0**20)

    def step(x, y):
        training.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = training.model(x).square().mean().view(1)  # torch scales `()` in fp32
        assert loss.dtype == torch.float16
        training.scaler.scale(loss).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()
        return loss.detach()

    found = training.first(step)
    assert found.first is None and found.caught


@pytest.mark.parametrize(
    ("results", "counts"),
    [
        (lambda loss: {"loss": loss, "recall": loss[loss > 99].mean()}, False),
        (lambda loss: (loss, torch.exp(loss * 1000)), False),
        (lambda loss: {"loss": loss * math.inf}, True),
    ],
)
def test_only_the_loss_among_results_counts(results, counts):
    training = SmallTraining()
    found = training.first(lambda x, y: results(training.plain(x, y)), steps=1)
    assert (found.first is not None) is counts


def test_inf_in_the_data_and_in_a_weight_have_different_names():
    training = SmallTraining()
    training.batches[0][0][0, 0] = math.inf
    found = training.first(training.plain)
    assert (found.first, found.preexisting) == (None, ("the data",))
    assert "There was inf or NaN before the step began, in the data." in str(found)
    assert "nan-in-data" in training.examine(training.plain).names
    training = SmallTraining()
    training.model[0].weight.data[0, 0] = math.inf
    found = training.first(training.plain)
    assert (found.first, found.preexisting) == (None, ("the weight 0.weight",))
    assert training.examine(training.plain).names == ("weights-not-finite",)


def test_what_held_nan_before_the_step_has_its_own_name():
    training = SmallTraining()
    training.first(training.plain)
    training.plain(*training.batches[0])
    weight = training.model[0].weight
    training.optimizer.state[weight]["exp_avg"][0, 0] = math.nan
    assert training.first(training.plain).preexisting == ("the state of AdamW",)
    training.optimizer.state.clear()
    weight.grad[0, 0] = math.nan

    def adds(x, y):
        cross_entropy(training.model(x), y).backward()
        training.optimizer.step()

    assert training.first(adds).preexisting == ("the gradient of 0.weight",)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own use
def test_forward_mode_differentiation_is_watched():
    model = nn.Linear(3, 2, bias=False)

    def step(x):
        value, change = torch.func.jvp(lambda x: model(x).sqrt().sum(), (x,), (x,))
        (value + change).backward()

    assert first_nonfinite(step, [(torch.zeros(1, 3),)], model=model).first.op == "div"
    hessian = torch.func.hessian(lambda x: model(x).pow(4).sum())
    assert not first_nonfinite(hessian, [(torch.ones(1, 3),)], model=model)


def test_an_exception_about_nan_is_named_by_the_op_that_made_it():
    training = SmallTraining()

    def step(x, y):
        scores = training.model(x)
        scores = scores / (scores - scores)
        loss = -torch.distributions.Categorical(logits=scores).log_prob(y).mean()
        loss.backward()

    assert training.first(step).first.op == "div"
    assert training.examine(step).names == ("division-by-zero",)

    def another(x, y):
        assert torch.exp(x * 1e5).isinf().any()
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk"):
        training.first(another)


def test_reading_batches_draws_no_random_number():
    training = SmallTraining()
    data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
    before = torch.get_rng_state()
    loader = DataLoader(data, 8, shuffle=True)
    doctor(training.model, training.plain, loader, training.optimizer, timing=0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_nan_in_the_code_is_reported_with_its_line():
    training = SmallTraining()

    def step(x, y):
        scores = training.model(x) * torch.tensor([1.0, math.nan, 1.0])
        training.optimizer.zero_grad()
        cross_entropy(scores, y).backward()
        training.optimizer.step()

    found = training.first(step)
    assert found.first is None and "torch.tensor([1.0, math.nan, 1.0])" in found.preexisting[0]
    assert "before the step began" not in str(found)
    (fault,) = training.examine(step).findings
    assert fault.name == "nan-in-data" and "torch.tensor" in fault.place


def test_what_a_step_used_up_is_reported():
    training = SmallTraining()
    batches = iter(DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), 8))
    step = lambda *_: training.plain(*next(batches))  # noqa: E731
    assert "Not put back: `batches` is an iterator" in str(training.first(step))
    assert dict(training.examine(step).not_put_back).keys() == {"batches"}
