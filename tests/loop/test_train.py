"""`train` against loops written out by hand, and against bad input."""

import copy
import importlib
from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.loop import AMP_BF16, AMP_FP16, FP32, train
from amp_course.loop.stepper import Stepper
from amp_course.loop.train import join, run

# the package has a function of that name
train_module = importlib.import_module("amp_course.loop.train")


@pytest.fixture
def setting():
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    batches = [
        (torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator))
        for _ in range(9)
    ]
    return model, batches


def by_hand(model, batches, dtype, scaler=None):
    """The loop of PyTorch's documentation, with nothing of ours in it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        if dtype is None:
            loss = cross_entropy(model(inputs), targets)
        else:
            with torch.autocast("cpu", dtype=dtype):
                loss = cross_entropy(model(inputs), targets)
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        losses.append(loss.item())
    return losses, list(model.parameters())


@pytest.mark.parametrize(
    ("recipe", "memory"),
    [(FP32, True), (AMP_BF16, True), (AMP_FP16, True), (AMP_FP16, False)],
    ids=["fp32", "bf16", "fp16", "fp16, memory not counted"],
)
def test_equals_the_loop_by_hand_bit_for_bit(setting, recipe, memory):
    model, batches = setting
    twin = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu") if recipe.scaled else None
    losses, weights = by_hand(twin, batches, recipe.dtype, scaler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    record = train(model, batches, cross_entropy, optimizer, recipe, memory=memory)
    assert list(record.losses) == losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), weights, strict=True))
    assert (record.memory is not None) == memory
    assert len(record.step_seconds) == len(batches) and min(record.step_seconds) > 0


def test_scales_and_skips_equal_the_scalers_own(setting):
    model, batches = setting
    for bad in (2, 6):
        batches[bad] = (batches[bad][0] * 1e6, batches[bad][1])
    options = {"init_scale": 2.0**8, "growth_interval": 3}
    twin, scaler = copy.deepcopy(model), torch.amp.GradScaler("cpu", **options)
    scales, skipped = [], []
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    for number, (inputs, targets) in enumerate(batches):
        scales.append(scaler.get_scale())
        before = [p.clone() for p in twin.parameters()]
        with torch.autocast("cpu", dtype=torch.float16):
            loss = cross_entropy(twin(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if all(torch.equal(a, b) for a, b in zip(before, twin.parameters(), strict=True)):
            skipped.append(number)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), 0.1),
        torch.amp.GradScaler("cpu", **options),
    )
    stepper = Stepper(model, optimizer, cross_entropy, dtype=torch.float16, scaler=scaler)
    record = run(stepper, batches, AMP_FP16)
    assert record.skipped == tuple(skipped) == (2, 6)
    assert record.scales == tuple(scales)
    assert any(later > earlier for earlier, later in pairwise(scales))  # it grew as well as fell


def test_a_run_in_two_parts_joins_to_the_whole(setting):
    model, batches = setting
    twin = copy.deepcopy(model)
    sgd = torch.optim.SGD(twin.parameters(), 0.1)
    whole = train(twin, batches, cross_entropy, sgd, "AMP bf16")
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    parts = [
        train(model, batches[:4], cross_entropy, sgd, AMP_BF16),
        train(model, batches[4:], cross_entropy, sgd, AMP_BF16, warmup=0, memory=False),
    ]
    joined = join(parts)
    assert joined.losses == whole.losses
    assert joined.memory is parts[0].memory and joined.warmup == 3
    assert len(joined.timing.samples) == len(batches) - 3


class SlowNet(nn.Linear):
    """A layer whose forward pass moves a clock on, by the next of `costs`."""

    def __init__(self, now, costs):
        super().__init__(6, 4)
        self.now, self.costs = now, iter(costs)

    def forward(self, inputs):
        self.now[0] += next(self.costs)
        return super().forward(inputs)


@pytest.mark.parametrize(
    ("costs", "limit", "memory", "steps"),
    [
        ([1.0] * 9, 5.5, False, 5),
        ([1.0] * 9, 9.5, True, 9),
        ([4.0, 2.0, 1.0, 1.0, 1.0, 1.0], 9.5, True, 5),  # 4 + 2 + 1 + 1 + 1: no time for one more
        ([4.0, 4.0, 4.0], 5.0, True, 2),  # memory is counted in the second step, whatever the limit
        ([4.0, 4.0], 0.0, False, 1),
    ],
)
def test_the_time_limit_is_one(setting, monkeypatch, costs, limit, memory, steps):
    _, batches = setting
    now = [100.0]
    monkeypatch.setattr(train_module.time, "monotonic", lambda: now[0])
    model = SlowNet(now, costs)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    options = {"memory": memory, "max_seconds": limit}
    record = train(model, batches, cross_entropy, optimizer, FP32, **options)
    assert len(record.losses) == steps and record.complete == (steps == len(batches))
    assert (record.memory is not None) == memory
    if steps < 4:
        assert record.timing.samples == record.step_seconds[-1:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": nn.Sequential(nn.ReLU())}, r"Sequential has no parameters.*ModuleList"),
        ({"batches": iter(())}, r"no batch to train on.*empty"),
        ({"loss_fn": nn.CrossEntropyLoss(reduction="none")}, r"shape \(8,\).*reduc"),
        ({"loss_fn": lambda outputs, targets: 1.0}, "loss_fn gave float"),
        ({"recipe": "fp8"}, r"unknown recipe 'fp8'.*amp_bf16"),
    ],
)
def test_what_cannot_be_trained_is_refused_and_nothing_changes(setting, change, words):
    model, batches = setting
    before = [p.clone() for p in model.parameters()]
    arguments = {"model": model, "batches": batches, "loss_fn": cross_entropy} | change
    with pytest.raises(ValueError, match=words):
        train(**arguments, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not torch.is_autocast_enabled("cpu")
