"""The step of `ddp_amp.py` counts every sample once, however they are divided among ranks and
micro-batches.
"""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from amp_course.audit import audit
from amp_course.distributed.launching import find_script
from amp_course.distributed.ranks import values_on_ranks, warm_ranks
from amp_course.watching.scene import flat
from tests.findings.record import of_audit, stored

RIGHT = find_script("ddp_amp").read_text("utf-8")
# a fault that it once had: all micro-batches' means had the same weight
FAULTY = RIGHT.replace(', reduction="sum"', "")
FAULTY = FAULTY.replace("loss * dist.get_world_size() / samples", "loss / len(group)")
SIZES = ([4, 7, 1], [12, 2])  # of the micro-batches, on rank 0 and on rank 1
SLOW = pytest.mark.slow
ROUNDING = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}


def step_of(source):
    script = {"__name__": "ddp_amp"}
    exec(compile(source, "ddp_amp.py", "exec"), script)
    return script["take_step"]


def samples(sizes):
    """Micro-batches of these sizes, whose classes and inputs differ from one to the next."""
    draw = torch.Generator().manual_seed(len(sizes))
    return [
        (torch.randn(n, 8, generator=draw) + number, torch.full((n,), number))
        for number, n in enumerate(sizes)
    ]


def parts(dtype):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=dtype == torch.float16)
    return model, optimizer, scaler


def moved_on_ranks(name, sizes):
    """Take a step on this rank's micro-batches; return how far the weights moved."""
    dtype = getattr(torch, name)
    model, optimizer, scaler = parts(dtype)
    before = flat(model.parameters())
    step_of(RIGHT)(model, samples(sizes[dist.get_rank()]), optimizer, scaler, dtype)
    return (before - flat(model.parameters())).tolist()


def gradient_in_one_process(sizes):
    """The clipped gradient of the mean over all samples of all ranks, in fp64 and all at once."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4)).double()
    batches = [batch for one in sizes for batch in samples(one)]
    x, y = map(torch.cat, zip(*batches, strict=True))
    F.cross_entropy(net(x.double()), y).backward()
    gradient = torch.cat([p.grad.flatten() for p in net.parameters()])
    return gradient / max(1.0, gradient.norm().item())


@pytest.mark.parametrize("name", ROUNDING)
def test_ranks_with_unequal_micro_batches_make_the_gradient_of_one_process(name):
    expected = gradient_in_one_process(SIZES)
    for moved in values_on_ranks(moved_on_ranks, name, SIZES):
        got = torch.tensor(moved, dtype=torch.float64)
        assert (got - expected).norm() < ROUNDING[name] * expected.norm()


@pytest.fixture
def alone(monkeypatch):
    """One rank in a group of its own."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # torch wraps it
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def evaluate_on_rank_0(inner):
    model = DistributedDataParallel(nn.BatchNorm1d(1)).eval()
    if dist.get_rank() == 0:
        with torch.no_grad():
            (model.module if inner else model)(torch.ones(4, 1))


def test_a_rank_that_evaluates_alone_waits_for_the_others_unless_it_calls_the_module():
    values_on_ranks(evaluate_on_rank_0, True)
    first, second = (report.failure for report in warm_ranks().run(evaluate_on_rank_0, False))
    assert "`broadcast`" in first.message and "can never complete" in first.message and not second


def audited(source, accumulate):
    """Audit the step with groups of `accumulate` micro-batches, and two shorter ones."""
    model, optimizer, scaler = parts(torch.float16)
    sizes = [32] * (accumulate - 1) + [3], [32] * accumulate, [32] * max(1, accumulate - 1)

    def loss(model, *group):
        x, y = map(torch.cat, zip(*group, strict=True))
        return F.cross_entropy(model(x), y)

    return audit(
        lambda *group: step_of(source)(model, group, optimizer, scaler, torch.float16),
        model=model,
        optimizer=optimizer,
        scaler=scaler,
        loss=loss,
        max_norm=1.0,
        batches=[tuple(samples(group)) for group in sizes],
    )


@pytest.mark.parametrize(
    "accumulate", [pytest.param(1, marks=SLOW), 3, pytest.param(4, marks=SLOW)]
)
def test_the_audit_finds_no_fault(alone, accumulate):
    report = audited(RIGHT, accumulate)
    assert not report.names and "gradient" in report.checked, report
    assert of_audit(report) == stored()[f"ddp step/right, {accumulate}"]


def test_the_audit_sees_a_mean_of_means(alone):
    report = audited(FAULTY, 3)
    assert report.names and of_audit(report) == stored()["ddp step/mean of means, 3"]
