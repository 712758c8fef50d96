"""`first_nonfinite` and `doctor` on steps whose inf and NaN come from the data, stop the step,
or do no harm.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from amp_course.debugging.nonfinite import first_nonfinite
from amp_course.doctor import doctor


class Training:
    """A small net, its optimizer and a scaler; `batches` has four batches."""

    def __init__(self, scale=1024.0, fused=False):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.batches = [(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(4)]

    def scaled(self, x, y):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(self.model(x), y)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return {"loss": loss.detach(), "grad_norm": norm}

    def plain(self, x, y):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def first(self, step, steps=4):
        given = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return first_nonfinite(step, self.batches, **given, steps=steps)

    def doctor(self, step):
        return doctor(self.model, step, self.batches, self.optimizer, self.scaler, timing=0)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_does_no_harm(fused):
    training = Training(scale=2.0**22, fused=fused)
    found = training.first(training.scaled)
    assert found.first is None and len(found.caught) >= 1
    assert training.doctor(training.scaled).names == ()


@pytest.mark.parametrize(
    ("results", "counts"),
    [
        (lambda loss: {"loss": loss, "recall": loss[loss > 99].mean()}, False),
        (lambda loss: (loss, torch.exp(loss * 1000)), False),
        (lambda loss: {"loss": loss * math.inf}, True),
    ],
)
def test_only_the_loss_among_results_counts(results, counts):
    training = Training()
    found = training.first(lambda x, y: results(training.plain(x, y)), steps=1)
    assert (found.first is not None) is counts


def test_inf_in_the_data_is_the_datas_and_in_a_weight_the_weights():
    training = Training()
    training.batches[0][0][0, 0] = math.inf
    found = training.first(training.plain)
    assert (found.first, found.given) == (None, ("the data",))
    assert "There was inf or NaN before the step began, in the data." in str(found)
    assert "nan-in-data" in training.doctor(training.plain).names
    training = Training()
    training.model[0].weight.data[0, 0] = math.inf
    found = training.first(training.plain)
    assert (found.first, found.given) == (None, ("the weight 0.weight",))
    assert training.doctor(training.plain).names == ("weights-not-finite",)


def test_an_exception_about_nan_is_told_by_the_op_that_made_it():
    training = Training()

    def step(x, y):
        scores = training.model(x)
        scores = scores / (scores - scores)
        loss = -torch.distributions.Categorical(logits=scores).log_prob(y).mean()
        loss.backward()

    assert training.first(step).first.op == "div"
    assert training.doctor(step).names == ("division-by-zero",)

    def another(x, y):
        assert torch.exp(x * 1e5).isinf().any()
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="disk"):
        training.first(another)


def test_reading_batches_draws_no_random_number():
    training = Training()
    data = TensorDataset(torch.randn(70, 8), torch.randint(0, 3, (70,)))
    before = torch.get_rng_state()
    loader = DataLoader(data, 8, shuffle=True)
    doctor(training.model, training.plain, loader, training.optimizer, timing=0)
    assert torch.equal(before, torch.get_rng_state())


def test_a_nan_that_stands_in_the_code_is_told_with_its_line():
    training = Training()

    def step(x, y):
        scores = training.model(x) * torch.tensor([1.0, math.nan, 1.0])
        training.optimizer.zero_grad()
        F.cross_entropy(scores, y).backward()
        training.optimizer.step()

    found = training.first(step)
    assert found.first is None and "torch.tensor([1.0, math.nan, 1.0])" in found.given[0]
    assert "before the step began" not in str(found)
    (fault,) = training.doctor(step).findings
    assert fault.name == "nan-in-data" and "torch.tensor" in fault.place


def test_what_a_step_used_up_is_told():
    training = Training()
    batches = iter(DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 3, (64,))), 8))
    step = lambda *_: training.plain(*next(batches))  # noqa: E731
    assert "Not put back: `batches` is an iterator" in str(training.first(step))
    assert dict(training.doctor(step).not_put_back).keys() == {"batches"}
