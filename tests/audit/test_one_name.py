"""Steps whose fault once had another name, or two: by the audit alone, and by the doctor, which joins the audit and its watch."""

from itertools import count

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_course.audit import audit
from amp_course.doctor import doctor


class Training:
    """A net, its optimizer and a scaler; `forward` runs in fp16 autocast."""

    def __init__(self, scale=1024.0, classes=3):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, classes))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.batches = [(torch.randn(8, 8), torch.randint(0, 3, (8,))) for _ in range(8)]
        self.calls = count(1)

    def forward(self, x, y):
        with torch.autocast("cpu", dtype=torch.float16):
            return F.cross_entropy(self.model(x), y)

    def audit(self, step, **more):
        given = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler, "batches": self.batches}
        return audit(step, **given | more)

    def doctor(self, step, **more):
        return doctor(self.model, step, self.batches, self.optimizer, self.scaler, timing=0, **more)


def unscaled_every_micro_batch(t, x, y):
    t.scaler.scale(t.forward(x, y) / 4).backward()
    t.scaler.unscale_(t.optimizer)
    if next(t.calls) % 4 == 0:
        t.scaler.step(t.optimizer)
        t.scaler.update()
        t.optimizer.zero_grad()


def stepped_every_micro_batch(t, x, y):
    (F.cross_entropy(t.model(x), y) / 4).backward()
    t.optimizer.step()
    if next(t.calls) % 4 == 0:
        t.optimizer.zero_grad()


def swallowed_exception(t, x, y):
    try:
        t.optimizer.zero_grad()
        F.cross_entropy(t.model(x), y.float()).backward()
        t.optimizer.step()
    except RuntimeError:
        pass


def optimizer_of_old_weights(t, x, y):
    if next(t.calls) == 1:
        t.model[2] = nn.Linear(16, 3)
    t.optimizer.zero_grad()
    F.cross_entropy(t.model(x), y).backward()
    t.optimizer.step()


@pytest.mark.parametrize(
    "step", [unscaled_every_micro_batch, stepped_every_micro_batch, swallowed_exception], ids=lambda step: step.__name__
)
def test_the_doctor_counts_one_fault_once(step):
    training = Training()
    found = training.doctor(lambda x, y: step(training, x, y), accumulate=4 if "micro" in step.__name__ else 1)
    assert found.names == (step.__name__.replace("_", "-"),)


def test_a_replaced_head_is_one_fault():
    training = Training()
    training.model[2] = nn.Linear(16, 3)
    next(training.calls)
    assert training.doctor(lambda x, y: optimizer_of_old_weights(training, x, y)).names == ("optimizer-of-old-weights",)


def test_labels_out_of_range():
    training = Training(classes=2)
    training.batches[0][1][:] = 2

    def step(x, y):
        training.optimizer.zero_grad()
        F.cross_entropy(training.model(x), y).backward()
        training.optimizer.step()

    assert training.audit(step).names == training.doctor(step).names == ("labels-out-of-range",)


def test_an_update_that_never_comes():
    training = Training()

    def step(x, y):
        training.optimizer.zero_grad()
        training.scaler.scale(training.forward(x, y)).backward()
        training.scaler.unscale_(training.optimizer)
        training.optimizer.step()

    assert training.audit(step).names == ("update-missing",)


def test_an_update_before_the_step():
    training = Training()

    def step(x, y):
        training.optimizer.zero_grad()
        training.scaler.scale(training.forward(x, y)).backward()
        training.scaler.update()
        training.scaler.step(training.optimizer)

    def without(x, y):
        training.optimizer.zero_grad()
        training.scaler.scale(training.forward(x, y)).backward()
        training.scaler.update()

    assert training.audit(step).names == ("update-before-step",)
    assert training.audit(without).names == ("never-stepped",)


@pytest.mark.parametrize(("factor", "expected"), [(1024, ("still-scaled",)), (100, ())])
def test_a_loss_that_is_never_divided_again(factor, expected):
    training = Training()

    def step(x, y):
        training.optimizer.zero_grad()
        (factor * training.forward(x, y)).backward()
        training.optimizer.step()

    assert training.audit(step, scaler=None).names == expected


def test_a_loss_that_is_scaled_by_hand_is_no_unscaled_loss():
    training = Training()

    def step(x, y):
        training.optimizer.zero_grad()
        (1024 * training.forward(x, y)).backward()
        norm = nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        for parameter in training.model.parameters():
            parameter.grad.div_(1024)
        if norm.isfinite():
            training.optimizer.step()

    assert training.audit(step, scaler=None, max_norm=1.0).names == ("clipped-while-scaled",)


def test_a_scaler_that_looks_for_its_scale_is_not_ill():
    training = Training(scale=2.0**30)

    def step(x, y):
        training.optimizer.zero_grad()
        training.scaler.scale(training.forward(x, y)).backward()
        training.scaler.step(training.optimizer)
        training.scaler.update()

    assert training.doctor(step).names == ()


def test_an_optimizer_that_the_loss_does_not_reach_gets_a_fix_that_fits():
    training, head = Training(), nn.Linear(3, 3)
    other = torch.optim.SGD(head.parameters(), lr=0.1)

    def step(x, y):
        training.optimizer.zero_grad()
        F.cross_entropy(head(training.model(x)).detach() + training.model(x), y).backward()
        training.optimizer.step()
        other.step()

    found = training.audit(
        step, model=[training.model, head], optimizer=[training.optimizer, other], scaler=None
    ).findings
    assert [one.name for one in found] == ["frozen-optimizer"] and "between these weights" in found[0].fix
