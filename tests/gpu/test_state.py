"""What the course promises about CUDA's own state: random numbers put back, errors explained,
runs resumed bit for bit.
"""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from amp_course.audit import audit
from amp_course.checking.explain import explain
from amp_course.kit.random_state import random_state, same_random_state, set_random_state
from amp_course.patterns import load_checkpoint, save_checkpoint


def test_the_random_state_is_put_back(device):
    torch.rand(3, device=device)
    state = random_state()
    first = torch.rand(3, device=device)
    with same_random_state():
        torch.rand(100, device=device)
        torch.cuda.manual_seed(1)
    second = torch.rand(3, device=device)
    set_random_state(state)
    assert torch.equal(torch.rand(3, device=device), first)
    assert torch.equal(torch.rand(3, device=device), second)


def test_two_devices_in_one_op_are_explained(device):
    model = nn.Linear(2, 2).to(device)
    with pytest.raises(RuntimeError) as raised:
        model(torch.ones(1, 2))
    assert "different devices" in explain(raised.value)


def make_run(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 5)).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return model, optimizer, torch.amp.GradScaler("cuda", init_scale=2.0**20, growth_interval=4)


def steps(run, batches):
    model, optimizer, scaler = run
    for inputs, targets in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], scaler.state_dict()


def test_a_resumed_run_equals_an_unbroken_one(device, deterministic, tmp_path):
    generator = torch.Generator().manual_seed(1)
    batches = [
        (
            torch.randn(8, 16, generator=generator).to(device),
            torch.randint(0, 5, (8,), generator=generator).to(device),
        )
        for _ in range(12)
    ]
    run = make_run(device)
    steps(run, batches[:6])
    model, optimizer, scaler = run
    save_checkpoint(tmp_path / "run.pt", model=model, optimizer=optimizer, scaler=scaler, step=6)
    unbroken = steps(run, batches[6:])
    torch.rand(7, device=device)
    model, optimizer, scaler = resumed = make_run(device)
    assert (
        load_checkpoint(tmp_path / "run.pt", model=model, optimizer=optimizer, scaler=scaler).step
        == 6
    )
    weights, state = steps(resumed, batches[6:])
    assert state == unbroken[1]
    assert all(map(torch.equal, weights, unbroken[0]))


@pytest.mark.parametrize(("unscales", "names"), [(True, ()), (False, ("clipped-while-scaled",))])
def test_the_audit_judges_a_step_on_a_gpu_and_puts_it_back(device, unscales, names):
    model, optimizer, scaler = make_run(device)
    batches = [
        (torch.randn(8, 16, device=device), torch.randint(0, 5, (8,), device=device))
        for _ in range(4)
    ]

    def train_step(inputs, targets):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if unscales:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss

    before, state = (
        [p.detach().clone() for p in model.parameters()],
        torch.cuda.get_rng_state(device),
    )
    objects = {"model": model, "optimizer": optimizer, "scaler": scaler, "batches": batches}
    report = audit(
        train_step, **objects, max_norm=0.1, loss=lambda model, x, y: cross_entropy(model(x), y)
    )
    assert report.names == names, str(report)
    assert all(map(torch.equal, before, model.parameters()))
    assert torch.equal(torch.cuda.get_rng_state(device), state)
