"""Every recipe on CUDA: chapter 06's against plain loops,
chapter 08's against what each keeps in which dtype.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.kit import data, models
from amp_course.loop import AMP_BF16, AMP_FP16, FP32, TF32, train
from amp_course.loop.figures import report_card_figure
from amp_course.loop.report import make_report_card
from amp_course.loop.workloads import digits_resnet, simple_net
from amp_course.recipes import ALL, HALF_BN32, O1, O2, O3, measure


@pytest.fixture
def setting(device):
    """A small net with batch norm on the GPU, and batches of which two overflow in fp16."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
    ).to(device)
    batches = [
        (
            torch.randn(16, 1, 6, 6, generator=generator).to(device),
            torch.randint(0, 10, (16,), generator=generator).to(device),
        )
        for _ in range(20)
    ]
    for number in (5, 12):
        batches[number] = batches[number][0] * 1e6, batches[number][1]
    return model, batches


def by_hand(model, batches, dtype, scaler):
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), []
    for inputs, targets in batches:
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("recipe", [FP32, AMP_BF16, AMP_FP16], ids=lambda recipe: recipe.name)
def test_train_is_the_plain_loop(setting, deterministic, recipe):
    model, batches = setting
    twin = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cuda", enabled=recipe.scaled)
    with recipe.precision():
        losses = by_hand(twin, batches, recipe.dtype, scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    record = train(model, batches, cross_entropy, optimizer, recipe, progress=False)
    assert all(
        a == b or (math.isnan(a) and math.isnan(b))
        for a, b in zip(record.losses, losses, strict=True)
    )
    assert all(map(torch.equal, model.parameters(), twin.parameters()))
    assert record.memory.cuda_peak and min(record.step_seconds) > 0
    if recipe is AMP_FP16:
        assert {5, 12} <= set(record.skipped)
    else:
        assert not record.skipped


def test_o1_is_autocast_and_grad_scaler(setting, deterministic):
    model, batches = setting
    twin = copy.deepcopy(model)
    losses = by_hand(twin, batches, torch.float16, torch.amp.GradScaler("cuda"))
    session = O1().prepare(
        model, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), cross_entropy
    )
    found = [session.step(*batch).item() for batch in batches]
    assert all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found, losses, strict=True)
    )
    assert all(map(torch.equal, session.model.parameters(), twin.parameters()))


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_every_recipe_trains_the_digits(device, recipe):
    digits = data.digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = models.DigitsResNet.for_device(device)
    session = recipe.prepare(
        model, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9), cross_entropy
    )
    losses = []
    for _, batch in zip(
        range(60), data.digit_batches(digits, 128, epochs=10, seed=1, device=device), strict=False
    ):
        losses.append(session.step(*batch).item())
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert sum(finite[-5:]) / 5 < 0.5 * finite[0]
    assert session.accuracy(digits.test_x.to(device), digits.test_y.to(device)) > 0.8
    state = {p.dtype for p in session.model.parameters()}
    wanted = {
        O2().name: {torch.float16, torch.float32},
        O3().name: {torch.float16},
        HALF_BN32().name: {torch.float16, torch.float32},
    }
    assert state == wanted.get(recipe.name, state)


@pytest.mark.parametrize("recipe", ALL, ids=lambda recipe: recipe.name)
def test_every_recipe_is_measured(device, recipe):
    model = models.DigitsResNet.for_device(device)
    found = measure(
        recipe,
        model,
        torch.randn(64, 1, 8, 8, device=device),
        torch.randint(0, 10, (64,), device=device),
    )
    kept = sum(found.weights.values()) / found.parameters
    assert kept == pytest.approx(
        {"o2": 2, "o3": 2, "half_bn32": 2, "pure_bf16": 2, "pure_bf16_sr": 2}.get(recipe.name, 4),
        rel=0.05,
    )


def test_the_report_card_of_a_gpu(device, tensor_cores, tmp_path):
    card = make_report_card(
        device,
        workloads=(simple_net(device, width=2048, batch_size=512), digits_resnet(device)),
        max_seconds=20,
    )
    assert {row.recipe.name for row in card.rows} == {"fp32", "tf32", "amp_fp16", "amp_bf16"}
    assert all(row.record.complete and row.record.memory.cuda_peak for row in card.rows)
    net = {row.recipe.name: row for row in card.of("simple_net")}
    for name in (TF32.name, AMP_FP16.name, AMP_BF16.name):
        assert card.speedup(net[name]) > 1.2, (
            name
        )  # matmuls of this size are what the matrix units are for
    told = card.paragraph()
    assert "emulated" not in told and "stopped" not in told
    report_card_figure(card).savefig(tmp_path / "card.png")
