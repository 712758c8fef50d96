"""`DynamicScaler` next to `torch.amp.GradScaler` on CUDA:
fp16 runs that overflow, equal to the last bit.
"""

import copy
import itertools

import pytest
import torch
from torch import nn

from amp_course.scaler import DynamicScaler

OPTIONS = {"init_scale": 2.0**24, "growth_interval": 3}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-2),
}


def train(scaler, model, make_optimizer, batches, clip):
    """Train in fp16 and return, step by step, the scale and the weights."""
    optimizer, history = make_optimizer(model.parameters()), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        history.append((scaler.get_scale(), [p.detach().clone() for p in model.parameters()]))
    return history, scaler.state_dict()


@pytest.mark.parametrize("clip", [False, True], ids=["plain", "clipped"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_twin_is_torchs_scaler_bit_for_bit(device, deterministic, optimizer, clip):
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
    batches = [
        (
            torch.randn(32, 64, generator=generator).to(device),
            torch.randint(0, 10, (32,), generator=generator).to(device),
        )
        for _ in range(24)
    ]
    batches[11] = batches[11][0] * 1e6, batches[11][1]  # inf in fp16
    runs = [
        train(scaler("cuda", **OPTIONS), copy.deepcopy(model), OPTIMIZERS[optimizer], batches, clip)
        for scaler in (torch.amp.GradScaler, DynamicScaler)
    ]
    (theirs, state), (ours, our_state) = runs
    assert [scale for scale, _ in ours] == [scale for scale, _ in theirs]
    for (_, a), (_, b) in zip(ours, theirs, strict=True):
        assert all(map(torch.equal, a, b))
    assert our_state == state
    scales = [OPTIONS["init_scale"], *(scale for scale, _ in ours)]
    skips = sum(later < earlier for earlier, later in itertools.pairwise(scales))
    assert 1 <= skips < len(batches)  # the run overflows, and gets over it


def test_a_scaler_leaves_its_decision_on_the_gpu(device):
    """The loss scale is one number on the device, so that `scale` has nothing to wait for."""
    scaler, theirs = DynamicScaler("cuda"), torch.amp.GradScaler("cuda")
    loss = torch.ones((), device=device, requires_grad=True)
    assert scaler.scale(loss).device == theirs.scale(loss).device
    assert scaler.scale(loss).item() == theirs.scale(loss).item() == 2.0**16
